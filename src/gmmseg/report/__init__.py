"""Numbers as things people look at: tables, charts, one HTML page. Needs no model."""
