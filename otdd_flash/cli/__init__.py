"""The command line: one command ``otdd``, each task a Hydra app. The only package that imports hydra."""
