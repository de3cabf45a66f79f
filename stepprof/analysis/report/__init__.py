"""Where the step went: facts of each source, combined to one report, as a table, JSON or a page. Needs the extra ``report``."""
