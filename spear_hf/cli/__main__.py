"""python -m spear_hf.cli, as `accelerate launch` and `torchrun` start it."""

from spear_hf.cli import main

if __name__ == "__main__":
    main()
