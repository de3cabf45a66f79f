"""Engines and servers whose processes run under Nsight Systems."""
