"""Models: architectures, compile and fit parameters, and the compiled Keras model that they make.

Only `build` imports Keras, and only a trainer process imports `build`; the other modules run in the driver.
"""
