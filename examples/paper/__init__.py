"""The paper's figures, and what paper_tables.py runs to put ours beside them."""
