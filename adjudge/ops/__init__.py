"""Operations of the forward pass, each a contract with a torch reference and a Triton path.

An op looks at its input's device: CUDA tensors go to the Triton kernels, all others to the
reference in the op's own file. Tensors in, tensors out; options are keyword-only.
"""
