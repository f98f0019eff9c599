"""The paper's rule of thumb for row norms."""

#: Mean row norm above which the paper's backbones fail without rescaling.
THRESHOLD = 2.0
