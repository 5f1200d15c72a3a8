"""python -m spear_hf.cli, for `accelerate launch -m` and `torchrun -m`."""

from spear_hf.cli import main

if __name__ == "__main__":
    main()
