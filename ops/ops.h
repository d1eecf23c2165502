// All ops. Every op checks its arguments, allocates its result, runs a kernel on the device of its inputs
// and records its gradient rule. Errors name the op, the argument and the shapes. Numbers that would have to be fetched
// from a GPU to be looked at (tokens, targets) are checked on the CPU only.
//
// Letters, here and everywhere: B batch, H heads, L length, E feature dimension, M value dimension, D model width, F
// feed-forward width, V vocabulary, C chunk, S key length, K mixture components, N = B H. "..." stands for any axes;
// rows are their product.
//
// This header is for programs that use the library: it includes all pages of the core; those of packages lie in their
// folders. Within Runnel, a file includes the pages that it needs, so that another op on one page compiles few files
// again.
#pragma once
#include "engine/random.h"
#include "engine/tape.h"
#include "engine/tensor.h"
#include "ops/attention_mask.h"
#include "ops/causal_convolution.h"
#include "ops/elementwise.h"
#include "ops/gated_linear_attention.h"
#include "ops/helpers.h"
#include "ops/layers.h"
#include "ops/linear.h"
#include "ops/linear_attention.h"
#include "ops/losses.h"
#include "ops/lsh_attention.h"
#include "ops/numerics.h"
#include "ops/optimizers.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/softmax_attention.h"
#include "ops/types.h"
