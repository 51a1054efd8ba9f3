"""The website: the pages of docs/, a reference of all public names, and the examples.

`nox -s site` builds it with MkDocs, which calls the functions of `hooks`.
"""
