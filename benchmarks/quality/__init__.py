"""Quality of the networks that are proposed for ordinary tables, compared with gradient boosting and perceptrons."""
