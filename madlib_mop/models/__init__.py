"""Models: architectures, compile and fit parameters, and compiled Keras models.

Only `build` imports Keras, and only a trainer process imports `build`; the other modules run in the driver.
"""
