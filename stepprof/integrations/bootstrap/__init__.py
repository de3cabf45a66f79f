"""The folder that `stepprof run` puts on the path of the job: Python imports its `sitecustomize`."""
