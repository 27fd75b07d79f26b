"""The interface of a backend of Keras, and what backends share; imports Keras, and no backend."""
