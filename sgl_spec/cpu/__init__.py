"""CPU kernels: the small-M linear layer and the rest of a Llama forward, in C++ with a PyTorch path beside it."""
