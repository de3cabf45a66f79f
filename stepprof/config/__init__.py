"""The configuration: what to record, when, where and within which bounds, checked when it is made."""
