"""python -m spear_hf: the spear-hf command."""

from spear_hf.cli import main

if __name__ == "__main__":
    main()
