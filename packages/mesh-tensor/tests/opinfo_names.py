"""The operations of torch's OpInfo database that are tested in each run.

They are the operations that training and numerical programs call directly or through modules: all
widely used layers, losses and activations of `nn.functional`, arithmetic and comparisons,
reductions, views and shape operations, indexing, sorting, factories, and the basics of linear
algebra and of Fourier transforms. Special functions, `masked.*`, windows, sparse matrices, and
aliases of these operations are only part of the long run, which tests the whole database.
"""

TEXT = """
H T abs acos acosh add addbmm addcdiv addcmul addmm addmv alias_copy all allclose amax amin
angle any arange argmax argmin argsort as_strided as_strided_copy asin asinh atan atan2 atanh
baddbmm bernoulli bincount bitwise_and bitwise_left_shift bitwise_not bitwise_or
bitwise_right_shift bitwise_xor bmm bool broadcast_tensors broadcast_to bucketize cat ceil
chunk clamp clamp_max clamp_min clone complex conj constant_pad_nd contiguous cos cosh
count_nonzero cummax cumprod cumsum diag diag_embed diagflat diagonal diagonal_copy div dot
double einsum empty empty_like eq equal erf erfc exp expand expand_copy expm1 eye fft.fft
fft.ifft fft.irfft fft.rfft fill flatten flip float floor floor_divide fmod frac full
full_like gather ge gt hstack imag index_add index_copy index_fill index_put index_select int
isclose isfinite isinf isnan item le lerp linalg.cholesky linalg.cross linalg.det
linalg.diagonal linalg.eig linalg.eigh linalg.inv linalg.matrix_norm linalg.matrix_power
linalg.matrix_rank linalg.norm linalg.pinv linalg.qr linalg.solve linalg.solve_triangular
linalg.svd linalg.svdvals linalg.vector_norm linspace log log10 log1p log2 log_softmax
logaddexp logdet logical_and logical_not logical_or logical_xor logsumexp long lt matmul
matrix_exp max maximum mean median meshgrid min minimum mm mul multinomial mv nan_to_num
nanmean narrow narrow_copy ne neg new_empty new_full new_ones new_zeros
nn.functional.adaptive_avg_pool1d nn.functional.adaptive_avg_pool2d
nn.functional.adaptive_max_pool1d nn.functional.adaptive_max_pool2d
nn.functional.alpha_dropout nn.functional.avg_pool1d nn.functional.avg_pool2d
nn.functional.avg_pool3d nn.functional.batch_norm nn.functional.binary_cross_entropy
nn.functional.binary_cross_entropy_with_logits nn.functional.conv1d nn.functional.conv2d
nn.functional.conv3d nn.functional.conv_transpose1d nn.functional.conv_transpose2d
nn.functional.conv_transpose3d nn.functional.cosine_embedding_loss
nn.functional.cosine_similarity nn.functional.cross_entropy nn.functional.ctc_loss
nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d nn.functional.elu
nn.functional.embedding nn.functional.embedding_bag nn.functional.gelu nn.functional.glu
nn.functional.group_norm nn.functional.hardshrink nn.functional.hardsigmoid
nn.functional.hardswish nn.functional.hardtanh nn.functional.huber_loss
nn.functional.instance_norm nn.functional.interpolate nn.functional.kl_div
nn.functional.l1_loss nn.functional.layer_norm nn.functional.leaky_relu nn.functional.linear
nn.functional.logsigmoid nn.functional.max_pool1d nn.functional.max_pool2d
nn.functional.max_pool3d nn.functional.mish nn.functional.mse_loss
nn.functional.multi_head_attention_forward nn.functional.nll_loss nn.functional.normalize
nn.functional.one_hot nn.functional.pad nn.functional.pixel_shuffle
nn.functional.pixel_unshuffle nn.functional.prelu nn.functional.relu nn.functional.relu6
nn.functional.rms_norm nn.functional.scaled_dot_product_attention nn.functional.selu
nn.functional.silu nn.functional.smooth_l1_loss nn.functional.softmin nn.functional.softplus
nn.functional.softshrink nn.functional.softsign nn.functional.tanhshrink
nn.functional.triplet_margin_loss nn.functional.unfold nonzero norm normal ones ones_like
outer permute permute_copy polar pow prod quantile rand_like randint randn randn_like ravel
real reciprocal remainder repeat repeat_interleave reshape resolve_conj resolve_neg roll round
rsqrt scalar_tensor scatter scatter_add scatter_reduce searchsorted select sigmoid sign sin
sinh slice softmax sort split sqrt square squeeze squeeze_copy stack std sub sum t t_copy
take_along_dim tan tanh tensor_split tensordot tile to to_sparse topk transpose transpose_copy
tril triu true_divide trunc unbind unbind_copy unflatten unfold unfold_copy uniform unique
unique_consecutive unsqueeze unsqueeze_copy var view view_as_real view_copy vstack where zero_
zeros zeros_like
"""

NAMES = TEXT.split()
