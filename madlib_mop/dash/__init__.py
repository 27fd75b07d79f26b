"""The live page, `madlib-mop dash`: runs in a browser, with the rights of the role that logged in."""
