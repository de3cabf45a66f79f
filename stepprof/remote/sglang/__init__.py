"""SGLang engines and servers."""
