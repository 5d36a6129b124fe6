"""Hydra configuration groups, shipped inside the package as ``otdd_flash.conf``."""
