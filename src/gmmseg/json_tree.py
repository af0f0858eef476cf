"""The types of what JSON files hold."""

from typing import Any

Value = Any
"""Text, a number, true, false, None, or a list or object of these."""
JSON = dict[str, Value]
"""A JSON object: values by name."""
