"""The objective inside other people's training loops: `huggingface` and `lightning`."""
