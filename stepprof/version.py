"""The version of stepprof. It is here so that every layer can read it without the package's public names."""

VERSION = "0.2.0"
