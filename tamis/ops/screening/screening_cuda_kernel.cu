// Screening on CUDA devices, compiled when it is first used. Equation numbers are those of "Screening Is Enough".
//
// Similarities of tensor cores are exact to 16 bits. Where that is not enough they only exclude pairs, and those that
// are left get a float32 product: for float32 inputs, in heads with a small r, and for gradients, because those of s_w
// and s_r are float32 whatever the input.
//
// Macros:
//   INPUT     dtype of q, k, v, gate and out: 0 float32, 1 bfloat16, 2 float16
//   CHUNKS    K in chunks of 16, the last filled with zeros
//   VALUE     V
//   POWER     of Trim: 1, 2 or 3
//   MASK      Softmask: 0 none, 1 cosine, 2 linear

typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;

#if INPUT == 0
typedef float Number;
__device__ inline float widen(float x) {
  return x;
}
__device__ inline float narrow(float x) {
  return x;
}
#elif INPUT == 1
typedef u16 Number;
__device__ inline float widen(u16 x) {
  return __uint_as_float((u32)x << 16);
}
#else
typedef u16 Number;
__device__ inline float widen(u16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
__device__ inline u16 narrow(float x) {
  u16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
#endif

__device__ inline u16 to_bfloat16(float x) {
  u16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
__device__ inline float of_bfloat16(u16 x) {
  return __uint_as_float((u32)x << 16);
}
#if INPUT == 1
__device__ inline u16 narrow(float x) {
  return to_bfloat16(x);
}
#endif

struct Strides {
  i64 b, t, h;
};

/// Of a head, float64 [H, 6].
struct HeadNumbers {
  double window, inverse_w, inverse_r, angle_step, angle_step_slope, one_minus_r;
};

const double kPi = 3.14159265358979323846;
const u32 kAll = 0xffffffffu;
const int kTile = 64, kWarps = 4;  // rows of a block of threads, 16 for each warp, and those that they meet at a time
const int kPlanes = 2;             // bfloat16 numbers whose sum is a component of a unit row: 16 bits
const int kRow = CHUNKS * kPlanes * 16;  // numbers of a unit row

/// What follows from the scalars of every head; windows above `expand_beyond` are infinite.        (4), (6), (7)
extern "C" __global__ void head_numbers(const void* s_w, const void* s_r, int wide, HeadNumbers* heads, int H,
                                        double mipe_threshold, double expand_beyond, int mipe) {
  const int h = threadIdx.x + blockIdx.x * blockDim.x;
  if (h >= H) return;
  const double by_w = wide ? ((const double*)s_w)[h] : ((const float*)s_w)[h];
  const double by_r = wide ? ((const double*)s_r)[h] : ((const float*)s_r)[h];
  const double inverse_r = 1 + exp(-by_r);
  HeadNumbers head = {exp(by_w) + 1, 0, inverse_r > 1e30 ? 1e30 : inverse_r, 0, 0, 1 / (1 + exp(by_r))};
  if (head.window > expand_beyond) head.window = __longlong_as_double(0x7ff0000000000000LL);
  const double w = head.window;
  head.inverse_w = 1 / w;
  if (mipe && w < mipe_threshold) {
    const double phi = (cospi(w / mipe_threshold) + 1) / 2;
    const double phi_slope = -sinpi(w / mipe_threshold) / 2 * kPi / mipe_threshold;
    head.angle_step = kPi * phi / w;
    head.angle_step_slope = kPi * (phi_slope - phi / w) / w * (w - 1);
  }
  heads[h] = head;
}

/// Of a row with this square; rows shorter than 1e-12 are divided by that. NaN stays, which fmax would drop.      (5)
__device__ inline double inverse_norm(double squared) {
  return 1 / sqrt(squared < 1e-24 ? 1e-24 : squared);
}

/// Where component d of a chunk stands: a lane's four components of a fragment are neighbours.
__device__ inline int place(int d) {
  return (d % 8 / 2) * 4 + d / 8 * 2 + d % 2;
}

/// Unit rows, rotated by MiPE, in planes: out [B, H, T, CHUNKS, planes, 16]; and as float32 [B, H, T, K].
///                                                                                                     (5), (6)
extern "C" __global__ void unit_rows(const Number* x, Strides stride, const HeadNumbers* heads, u16* out, float* unit,
                                     int B, int T, int H, int K, int first) {
  const i64 n = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (n >= (i64)B * T * H) return;
  const int h = n % H, t = n / H % T, b = n / H / T;
  const Number* row = x + b * stride.b + t * stride.t + h * stride.h;
  double squared = 0;
  float value[CHUNKS * 16];
#pragma unroll
  for (int d = 0; d < CHUNKS * 16; ++d) {
    value[d] = d < K ? widen(row[d]) : 0.0f;
    squared += (double)value[d] * value[d];
  }
  const double inverse = inverse_norm(squared);
  double turned[2] = {value[0] * inverse, value[1] * inverse};
  const double step = heads[h].angle_step;
  if (step != 0) {
    double sine, cosine;
    sincos(step * (first + t), &sine, &cosine);
    const double x0 = turned[0], x1 = turned[1];
    turned[0] = x0 * cosine - x1 * sine;
    turned[1] = x0 * sine + x1 * cosine;
  }
  u16* to = out + (((i64)b * H + h) * T + t) * kRow;
#pragma unroll
  for (int d = 0; d < CHUNKS * 16; ++d) {
    float rest = d < 2 ? (float)turned[d] : (float)(value[d] * inverse);
    if (d < K) unit[(((i64)b * H + h) * T + t) * K + d] = rest;
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) {
      const u16 part = to_bfloat16(rest);
      to[(d / 16 * kPlanes + p) * 16 + place(d % 16)] = part;
      rest -= of_bfloat16(part);
    }
  }
}

/// 1 / |v| of every row: out [B, H, T].                                                                     (5)
extern "C" __global__ void inverse_norms(const Number* x, Strides stride, float* out, int B, int T, int H) {
  const i64 n = (blockIdx.x * (i64)blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (n >= (i64)B * T * H) return;
  const int h = n % H, t = n / H % T, b = n / H / T;
  const Number* row = x + b * stride.b + t * stride.t + h * stride.h;
  double squared = 0;
  for (int d = lane; d < VALUE; d += 32) {
    const double value = widen(row[d]);
    squared += value * value;
  }
  for (int offset = 16; offset > 0; offset /= 2) squared += __shfl_xor_sync(kAll, squared, offset);
  if (lane == 0) out[((i64)b * H + h) * T + t] = (float)inverse_norm(squared);
}

__device__ inline void multiply(float c[4], const uint2& a, const uint2& below, const uint2& b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(below.x), "r"(a.y), "r"(below.y), "r"(b.x), "r"(b.y));
}

/// The planes of a warp's 16 rows, as the products take them: of each lane those of two rows.
struct Fragments {
  uint2 above[CHUNKS][kPlanes], below[CHUNKS][kPlanes];

  /// Rows of `planes`, of which there are T; others are 0.
  __device__ Fragments(const u16* planes, const int row[2], int T, int part) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
      for (int p = 0; p < kPlanes; ++p) {
        const int at = (c * kPlanes + p) * 16 + part * 4;
        above[c][p] = row[0] < T ? *(const uint2*)(planes + (i64)row[0] * kRow + at) : make_uint2(0, 0);
        below[c][p] = row[1] < T ? *(const uint2*)(planes + (i64)row[1] * kRow + at) : make_uint2(0, 0);
      }
    }
  }
};

/// The next rows, for all warps of a block; others are 0.
__device__ inline void copy_tile(u16* tile, const u16* planes, int rows) {
  for (int n = threadIdx.x; n < kTile * kRow / 8; n += kWarps * 32) {
    ((uint4*)tile)[n] = n < rows * kRow / 8 ? ((const uint4*)planes)[n] : make_uint4(0, 0, 0, 0);
  }
}

/// Of a warp's rows with 8 others, of which a lane reads one. Rounding does not depend on which of them are the keys.
/// (8)
template <bool kOwnKeys>
__device__ inline void similarities(float s[4], const Fragments& own, const u16* other, int part) {
  for (int r = 0; r < 4; ++r) s[r] = 0;
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
    uint2 others[kPlanes];
#pragma unroll
    for (int p = 0; p < kPlanes; ++p) others[p] = *(const uint2*)(other + (c * kPlanes + p) * 16 + part * 4);
#pragma unroll
    for (int order = kPlanes - 1; order >= 0; --order) {  // small terms first
#pragma unroll
      for (int p = 0; p <= order; ++p) {
        const int mine = kOwnKeys ? order - p : p;
        multiply(s, own.above[c][mine], own.below[c][mine], others[order - mine]);
      }
    }
  }
}

/// Rounding of similarities of tensor cores, with components of 16 bits, at most.
const float kRounding = 1e-4f;

/// q . k of unit rows in float32.                                                                              (8)
__device__ inline float exact_similarity(const float* q, const float* k, int K) {
  float low = 0, high = 0;
  for (int d = 0; d + 1 < K; d += 2) {
    low = fmaf(q[d], k[d], low);
    high = fmaf(q[d + 1], k[d + 1], high);
  }
  return K % 2 ? fmaf(q[K - 1], k[K - 1], low + high) : low + high;
}

/// The root of Trim, at most 1; accepted are those that are not 0 or below, so NaN is and shows in the result.   (9)
__device__ inline float trim_root(float s, float inverse_r) {
  const float t = fmaf(s - 1, inverse_r, 1);
  return t > 1 ? 1 : t;
}

/// Trim of its root.                                                                                           (9)
__device__ inline float trim(float t) {
  return POWER == 1 ? t : POWER == 2 ? t * t : t * t * t;
}

/// Softmask inside the window for x = distance / w.                                                           (10)
__device__ inline float softmask(float x) {
  return MASK == 1 ? 0.5f * (cospif(x) + 1) : MASK == 2 ? 1 - x : 1;
}

/// tanh(SiLU(g)).                                                                                              (17)
__device__ inline float gate_factor(float g) {
  return tanhf(g / (1 + expf(-g)));
}

/// The lanes of a mask, two at a time: 32 behind the last one.
__device__ inline int next_lane(u32& mask) {
  if (!mask) return 32;
  const int lane = __ffs(mask) - 1;
  mask &= mask - 1;
  return lane;
}

/// 64 queries of one head: a warp has 16 of them, and all keys that they may see, 64 at a time. Similarities are matrix
/// products; the values of accepted keys are added one by one, in a fixed order.           (8)-(14), (17), (18)
extern "C" __global__ void __launch_bounds__(128)
    screening(const u16* q, const u16* k, const float* q_unit, const float* k_unit, const Number* v, Strides v_stride,
              const float* v_norm, const HeadNumbers* heads,
              const i64* document,  // [B, T_k] or null
              const Number* gate, Strides gate_stride, Number* out,
              // For the gradients of out instead: those of h, float32, and of the gate, both [B, T_q, H, V].
              const Number* grad, Strides grad_stride, float* dh, Number* dgate, int T_q, int T_k, int H, int K,
              int tanh_norm) {
  __shared__ __align__(16) u16 tile[kTile * kRow];
  extern __shared__ float sums[];  // [queries, V]
  const int h = blockIdx.y, b = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = lane / 4, part = lane % 4, offset = T_k - T_q;
  const double window = heads[h].window;
  const float inverse_w = (float)heads[h].inverse_w, inverse_r = (float)heads[h].inverse_r;
  const int span = window < T_k ? (int)ceil(window) : T_k;
  const int first_query = blockIdx.x * kTile, first_row = first_query + warp * 16;
  const i64 head = (i64)b * H + h;
  const bool exact =
      INPUT == 0 || dh || inverse_r > 32;  // 1/r amplifies rounding; gradients of s_w and s_r are float32
  float* own = sums + warp * 16 * VALUE;
  for (int d = lane; d < 16 * VALUE; d += 32) own[d] = 0;

  const int row[2] = {first_row + group, first_row + group + 8};
  const Fragments own_rows(q + head * T_q * kRow, row, T_q, part);
  i64 own_document[2] = {0, 0};
  if (document) {
    for (int r = 0; r < 2; ++r) own_document[r] = row[r] < T_q ? document[(i64)b * T_k + offset + row[r]] : 0;
  }

  const int last_key = min(first_query + kTile, T_q) - 1 + offset;
  const int oldest = max(0, first_query + offset - span + 1) / kTile * kTile;
  const int own_last = min(first_row + 16, T_q) - 1 + offset, own_oldest = first_row + offset - span + 1;
  for (int block = oldest; block <= last_key; block += kTile) {
    __syncthreads();
    copy_tile(tile, k + (head * T_k + block) * kRow, min(kTile, T_k - block));
    __syncthreads();
    if (block > own_last || block + kTile <= own_oldest) continue;
    for (int n = 0; n < kTile; n += 8) {
      const int key = block + n;
      if (key > own_last || key + 8 <= own_oldest) continue;
      float s[4];
      similarities<false>(s, own_rows, tile + (n + group) * kRow, part);
      float weight[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int query = row[r / 2], j = key + part * 2 + r % 2, distance = query + offset - j;
        float t = trim_root(exact ? s[r] + kRounding : s[r], inverse_r);
        bool accepted = !(t <= 0) && distance >= 0 && distance < span && query < T_q;
        if (document && accepted) accepted = document[(i64)b * T_k + j] == own_document[r / 2];
        if (exact && accepted) {
          t = trim_root(exact_similarity(q_unit + (head * T_q + query) * K, k_unit + (head * T_k + j) * K, K),
                        inverse_r);
          accepted = !(t <= 0);
        }
        const float m = inverse_w != 0 ? softmask(distance * inverse_w) : 1;
        weight[r] = accepted ? trim(t) * m * v_norm[head * T_k + j] : 0;
      }
      if (!__any_sync(kAll, weight[0] != 0 || weight[1] != 0 || weight[2] != 0 || weight[3] != 0)) continue;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        u32 mask = __ballot_sync(kAll, weight[r] != 0);
        while (mask) {  // two at a time, whose values are read together
          const int lanes[2] = {next_lane(mask), next_lane(mask)};
          const int second = lanes[1] < 32 ? lanes[1] : lanes[0];
          const int i[2] = {lanes[0] / 4 + r / 2 * 8, second / 4 + r / 2 * 8};
          const float by[2] = {__shfl_sync(kAll, weight[r], lanes[0]), __shfl_sync(kAll, weight[r], second)};
          const Number* first = v + b * v_stride.b + (key + lanes[0] % 4 * 2 + r % 2) * v_stride.t + h * v_stride.h;
          const Number* other = v + b * v_stride.b + (key + second % 4 * 2 + r % 2) * v_stride.t + h * v_stride.h;
          float values[2][(VALUE + 31) / 32];
#pragma unroll
          for (int d = lane, n_d = 0; d < VALUE; d += 32, ++n_d) {
            values[0][n_d] = widen(first[d]);
            values[1][n_d] = widen(other[d]);
          }
#pragma unroll
          for (int d = lane, n_d = 0; d < VALUE; d += 32, ++n_d) {  // (11), (12)
            own[i[0] * VALUE + d] = fmaf(by[0], values[0][n_d], own[i[0] * VALUE + d]);
            if (lanes[1] < 32) own[i[1] * VALUE + d] = fmaf(by[1], values[1][n_d], own[i[1] * VALUE + d]);
          }
        }
      }
    }
  }
  __syncwarp();
  for (int i = 0; i < 16 && first_row + i < T_q; ++i) {
    const i64 result = (((i64)b * T_q + first_row + i) * H + h) * VALUE;
    const Number* gate_row = gate + b * gate_stride.b + (first_row + i) * gate_stride.t + h * gate_stride.h;
    const Number* grad_row = grad + b * grad_stride.b + (first_row + i) * grad_stride.t + h * grad_stride.h;
    float factor = 1, slope = 0;
    if (tanh_norm) {  // (13), (14)
      float squared = 0, along = 0;
      for (int d = lane; d < VALUE; d += 32) {
        const float x = own[i * VALUE + d];
        squared = fmaf(x, x, squared);
        if (dh) along = fmaf(x, widen(grad_row[d]) * (gate ? gate_factor(widen(gate_row[d])) : 1), along);
      }
      for (int step = 16; step > 0; step /= 2) {
        squared += __shfl_xor_sync(kAll, squared, step);
        along += __shfl_xor_sync(kAll, along, step);
      }
      const float norm = sqrtf(squared), length = tanhf(norm);
      if (norm > 0) factor = length / norm;
      // f'(n)/n loses its digits near n = 0, where it is -2/3.
      slope = (norm < 1e-2f ? -2.0f / 3 : (1 - length * length - factor) / squared) * along;
    }
    for (int d = lane; d < VALUE; d += 32) {
      const float x = own[i * VALUE + d], u = x * factor, g = gate ? widen(gate_row[d]) : 0;
      const float G = gate ? gate_factor(g) : 1;  // (17), (18)
      if (!dh) {
        out[result + d] = narrow(u * G);
        continue;
      }
      const float du = widen(grad_row[d]);
      dh[result + d] = factor * du * G + slope * x;
      if (gate) {
        const float sigmoid = 1 / (1 + expf(-g));
        dgate[result + d] = narrow(du * u * (1 - G * G) * sigmoid * (1 + g * (1 - sigmoid)));
      }
    }
  }
}

/// What a pair contributes, for b = dh . v: to dv, ds, ds_r and ds_w.
struct Pair {
  float value, similarity, width, window;
};

/// 64 own rows of one head, queries or keys, and all rows of the other kind that see them or that they see.
/// Own queries: dq [B, H, T_q, K] of unit rows; sums [B, H, blocks * 4, 3] for s_r, s_w and the angle of MiPE.
/// Own keys: dk [B, H, T_k, K] and dv [B, H, T_k, V] of unit rows.
template <bool kOwnKeys>
__device__ void gradients(const u16* q, const u16* k, const float* q_unit, const float* k_unit, const Number* v,
                          Strides v_stride, const float* v_norm, const float* dh, const HeadNumbers* heads,
                          const i64* document, float* d_own, float* dv, double* sums, int T_q, int T_k, int H, int K) {
  __shared__ __align__(16) u16 tile[kTile * kRow];
  extern __shared__ float shared[];
  const int h = blockIdx.y, b = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = lane / 4, part = lane % 4, offset = T_k - T_q;
  const double window = heads[h].window;
  const float inverse_w = (float)heads[h].inverse_w, inverse_r = (float)heads[h].inverse_r;
  const int span = window < T_k ? (int)ceil(window) : T_k;
  const i64 head = (i64)b * H + h;
  const int T_own = kOwnKeys ? T_k : T_q, T_other = kOwnKeys ? T_q : T_k;
  const u16 *own_planes = kOwnKeys ? k : q, *other_planes = kOwnKeys ? q : k;
  const int first_own = blockIdx.x * kTile, first_row = first_own + warp * 16;

  // Of the own rows: dh or unit values, the gradient of unit rows and, for keys, that of unit values.
  float* own = shared + warp * 16 * ((kOwnKeys ? 2 : 1) * VALUE + K);
  float* own_gradient = own + 16 * VALUE;
  float* own_dv = own_gradient + 16 * K;
  for (int i = 0; i < 16; ++i) {
    const int r = first_row + i;
    for (int d = lane; d < VALUE; d += 32) {
      float x = 0;
      if (r < T_own) {
        x = kOwnKeys ? widen(v[b * v_stride.b + r * v_stride.t + h * v_stride.h + d]) * v_norm[head * T_k + r]
                     : dh[(((i64)b * T_q + r) * H + h) * VALUE + d];
      }
      own[i * VALUE + d] = x;
      if (kOwnKeys) own_dv[i * VALUE + d] = 0;
    }
    for (int d = lane; d < K; d += 32) own_gradient[i * K + d] = 0;
  }

  const int row[2] = {first_row + group, first_row + group + 8};
  const Fragments own_rows(own_planes + head * T_own * kRow, row, T_own, part);
  i64 own_document[2] = {0, 0};
  if (document) {
    for (int r = 0; r < 2; ++r) {
      own_document[r] = row[r] < T_own ? document[(i64)b * T_k + row[r] + (kOwnKeys ? 0 : offset)] : 0;
    }
  }

  // Rows of the other kind for the block, and for this warp.
  const int last_own = min(first_own + kTile, T_own) - 1, last_row = min(first_row + 16, T_own) - 1;
  const int begin = kOwnKeys ? max(0, first_own - offset) : max(0, first_own + offset - span + 1);
  const int end = kOwnKeys ? min(T_q - 1, last_own - offset + span - 1) : last_own + offset;
  const int own_begin = kOwnKeys ? first_row - offset : first_row + offset - span + 1;
  const int own_end = kOwnKeys ? last_row - offset + span - 1 : last_row + offset;
  double by_width = 0, by_window = 0, by_angle = 0;
  for (int block = begin / kTile * kTile; block <= end; block += kTile) {
    __syncthreads();
    copy_tile(tile, other_planes + (head * T_other + block) * kRow, min(kTile, T_other - block));
    __syncthreads();
    for (int n = 0; n < kTile; n += 8) {
      const int other = block + n;
      if (other > own_end || other + 8 <= own_begin) continue;
      float s[4];
      similarities<kOwnKeys>(s, own_rows, tile + (n + group) * kRow, part);
      Pair pair[4];
      bool accepted[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int mine = row[r / 2], its = other + part * 2 + r % 2;
        const int i = kOwnKeys ? its : mine, j = kOwnKeys ? mine : its, distance = i + offset - j;
        float t = trim_root(s[r] + kRounding, inverse_r);
        accepted[r] = !(t <= 0) && distance >= 0 && distance < span && i < T_q && j < T_k;
        if (document && accepted[r]) {
          accepted[r] = document[(i64)b * T_k + its + (kOwnKeys ? offset : 0)] == own_document[r / 2];
        }
        if (accepted[r]) {
          t = trim_root(exact_similarity(q_unit + (head * T_q + i) * K, k_unit + (head * T_k + j) * K, K), inverse_r);
          accepted[r] = !(t <= 0);
        }
        float m = 1, slope = 0;
        if (inverse_w != 0) {
          const float x = distance * inverse_w;
          m = softmask(x);
          if (MASK == 1) slope = 1.57079632679489662f * x * sinpif(x) * (1 - inverse_w);
          if (MASK == 2) slope = x * (1 - inverse_w);
        }
        const float a = trim(t);
        const float da = POWER == 1 ? 1 : POWER == 2 ? 2 * t : 3 * t * t;  // da / dt
        const float norm = kOwnKeys || !accepted[r] ? 1 : v_norm[head * T_k + j];
        pair[r] = {a * m, da * m * inverse_r * norm, da * m * (1 - t) * norm, a * slope * norm};
      }
      if (!__any_sync(kAll, accepted[0] || accepted[1] || accepted[2] || accepted[3])) continue;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        u32 mask = __ballot_sync(kAll, accepted[r]);
        while (mask) {
          const int from_lane = __ffs(mask) - 1;
          mask &= mask - 1;
          const int its = other + from_lane % 4 * 2 + r % 2, mine = from_lane / 4 + r / 2 * 8;
          const int i = kOwnKeys ? its : first_row + mine, j = kOwnKeys ? first_row + mine : its;
          const float by_similarity = __shfl_sync(kAll, pair[r].similarity, from_lane);
          float product = 0;  // dh . v
          if (kOwnKeys) {
            const float by_value = __shfl_sync(kAll, pair[r].value, from_lane);
            const float* dh_row = dh + (((i64)b * T_q + i) * H + h) * VALUE;
#pragma unroll
            for (int d = lane; d < VALUE; d += 32) {
              const float x = dh_row[d];
              product = fmaf(x, own[mine * VALUE + d], product);
              own_dv[mine * VALUE + d] = fmaf(by_value, x, own_dv[mine * VALUE + d]);
            }
          } else {
            const Number* value = v + b * v_stride.b + j * v_stride.t + h * v_stride.h;
#pragma unroll
            for (int d = lane; d < VALUE; d += 32) product = fmaf(own[mine * VALUE + d], widen(value[d]), product);
          }
          for (int step = 16; step > 0; step /= 2) product += __shfl_xor_sync(kAll, product, step);
          const float ds = product * by_similarity;
          const float* its_unit = kOwnKeys ? q_unit + (head * T_q + i) * K : k_unit + (head * T_k + j) * K;
          for (int d = lane; d < K; d += 32)
            own_gradient[mine * K + d] = fmaf(ds, its_unit[d], own_gradient[mine * K + d]);
          if (!kOwnKeys) {
            by_width += product * __shfl_sync(kAll, pair[r].width, from_lane);
            by_window += product * __shfl_sync(kAll, pair[r].window, from_lane);
            const float* q_row = q_unit + (head * T_q + i) * K;
            by_angle += (double)ds * (i + offset - j) * (q_row[0] * its_unit[1] - q_row[1] * its_unit[0]);
          }
        }
      }
    }
  }
  __syncwarp();
  for (int i = 0; i < 16 && first_row + i < T_own; ++i) {
    for (int d = lane; d < K; d += 32) d_own[(head * T_own + first_row + i) * K + d] = own_gradient[i * K + d];
    if constexpr (kOwnKeys) {
      for (int d = lane; d < VALUE; d += 32) dv[(head * T_k + first_row + i) * VALUE + d] = own_dv[i * VALUE + d];
    }
  }
  if (!kOwnKeys && lane == 0) {
    double* to = sums + ((head * gridDim.x + blockIdx.x) * kWarps + warp) * 3;
    to[0] = by_width;
    to[1] = by_window;
    to[2] = by_angle;
  }
}

extern "C" __global__ void __launch_bounds__(128)
    query_gradients(const u16* q, const u16* k, const float* q_unit, const float* k_unit, const Number* v,
                    Strides v_stride, const float* v_norm, const float* dh, const HeadNumbers* heads,
                    const i64* document, float* dq, double* sums, int T_q, int T_k, int H, int K) {
  gradients<false>(q, k, q_unit, k_unit, v, v_stride, v_norm, dh, heads, document, dq, nullptr, sums, T_q, T_k, H, K);
}

extern "C" __global__ void __launch_bounds__(128)
    key_gradients(const u16* q, const u16* k, const float* q_unit, const float* k_unit, const Number* v,
                  Strides v_stride, const float* v_norm, const float* dh, const HeadNumbers* heads, const i64* document,
                  float* dk, float* dv, int T_q, int T_k, int H, int K) {
  gradients<true>(q, k, q_unit, k_unit, v, v_stride, v_norm, dh, heads, document, dk, dv, nullptr, T_q, T_k, H, K);
}

/// The gradient of rows [B, T, H, K] for that of their unit rows, rotated back: d and unit are [B, H, T, K].
extern "C" __global__ void row_gradients(const Number* x, Strides stride, const HeadNumbers* heads, const float* unit,
                                         const float* d_unit, Number* out, int B, int T, int H, int K, int first) {
  const i64 n = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (n >= (i64)B * T * H) return;
  const int h = n % H, t = n / H % T, b = n / H / T;
  const Number* row = x + b * stride.b + t * stride.t + h * stride.h;
  const float* u = unit + (((i64)b * H + h) * T + t) * K;
  const float* d = d_unit + (((i64)b * H + h) * T + t) * K;
  double squared = 0;
  float along = 0;
  for (int c = 0; c < K; ++c) {
    const double value = widen(row[c]);
    squared += value * value;
    along = fmaf(u[c], d[c], along);
  }
  if (squared <= 1e-24) along = 0;
  const float inverse = squared == 0 ? 0 : (float)inverse_norm(squared);
  float g0 = (d[0] - u[0] * along) * inverse, g1 = (d[1] - u[1] * along) * inverse;
  const double step = heads[h].angle_step;
  if (step != 0) {
    double sine, cosine;
    sincos(step * (first + t), &sine, &cosine);
    const double x0 = g0, x1 = g1;
    g0 = (float)(x0 * cosine + x1 * sine);
    g1 = (float)(x1 * cosine - x0 * sine);
  }
  Number* to = out + n * K;
  to[0] = narrow(g0);
  to[1] = narrow(g1);
  for (int c = 2; c < K; ++c) to[c] = narrow((d[c] - u[c] * along) * inverse);
}

/// The same of values, [B, T, H, V], which are not rotated; d_unit is [B, H, T, V].
extern "C" __global__ void value_gradients(const Number* x, Strides stride, const float* norm, const float* d_unit,
                                           Number* out, int B, int T, int H) {
  const i64 n = (blockIdx.x * (i64)blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (n >= (i64)B * T * H) return;
  const int h = n % H, t = n / H % T, b = n / H / T;
  const i64 at = ((i64)b * H + h) * T + t;
  const Number* row = x + b * stride.b + t * stride.t + h * stride.h;
  const float* d = d_unit + at * VALUE;
  const float inverse = norm[at];
  float along = 0;
  bool zero = true;
  for (int c = lane; c < VALUE; c += 32) {
    const float value = widen(row[c]);
    along = fmaf(value * inverse, d[c], along);
    zero = zero && value == 0;
  }
  for (int step = 16; step > 0; step /= 2) along += __shfl_xor_sync(kAll, along, step);
  zero = __all_sync(kAll, zero);
  if (inverse >= 1e12f) along = 0;  // a row shorter than 1e-12 is only scaled
  Number* to = out + n * VALUE;
  for (int c = lane; c < VALUE; c += 32) {
    to[c] = zero ? narrow(0) : narrow((d[c] - widen(row[c]) * inverse * along) * inverse);
  }
}

/// The gradients of s_r and s_w from the sums of query_gradients, [B, H, parts, 3]; a block for each head.
extern "C" __global__ void head_gradients(const double* sums, const HeadNumbers* heads, int wide, void* ds_w,
                                          void* ds_r, int B, int H, int parts) {
  __shared__ double shared[3][128];
  const int h = blockIdx.x;
  double own[3] = {0, 0, 0};
  for (int n = threadIdx.x; n < B * parts; n += 128) {
    const double* from = sums + (((i64)(n / parts) * H + h) * parts + n % parts) * 3;
    for (int c = 0; c < 3; ++c) own[c] += from[c];
  }
  for (int c = 0; c < 3; ++c) shared[c][threadIdx.x] = own[c];
  for (int half = 64; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x >= half) continue;
    for (int c = 0; c < 3; ++c) shared[c][threadIdx.x] += shared[c][threadIdx.x + half];
  }
  if (threadIdx.x != 0) return;
  const double by_r = shared[0][0] * heads[h].one_minus_r;
  const double by_w = shared[1][0] + shared[2][0] * heads[h].angle_step_slope;
  if (wide) {
    ((double*)ds_w)[h] = by_w;
    ((double*)ds_r)[h] = by_r;
  } else {
    ((float*)ds_w)[h] = (float)by_w;
    ((float*)ds_r)[h] = (float)by_r;
  }
}
