"""A miniature of the hub on 127.0.0.1, with the repositories that the registries name."""
