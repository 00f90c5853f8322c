// The steps of a sampled weight gradient that are not a matrix product: score the positions, draw some, gather them.
//
// Each step is shared out by samples, and a sample is always summed in the same order, so that the number of threads
// changes nothing. Loops are plain and left to the compiler, which knows the processor's vectors.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include <omp.h>

namespace {

using std::int32_t;
using std::int64_t;

}  // namespace

// Mirrored field by field in sampled_compiled.py. Strides count elements; a position or pixel counts row by row.
struct Problem {
  int64_t samples, threads;
  int64_t channels, inputs, kernel_y, kernel_x;  // of all groups
  int64_t height, width, out_height, out_width;
  int64_t stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
  int64_t x_sample, x_channel, x_pixel;
  int64_t grad_sample, grad_channel, grad_position;
  int64_t own_means;
};

namespace {

// ---- scores

// The sum over positions of each channel of one sample.
template <typename T>
void sum_positions(const T* source, int64_t channel_step, int64_t step, int64_t channels, int64_t count, T* sums) {
  if (channel_step == 1) {
    std::fill_n(sums, channels, T(0));
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < channels; ++c) sums[c] += source[i * step + c];
    return;
  }
  constexpr int64_t lanes = 16;  // sums that do not wait for each other
  for (int64_t c = 0; c < channels; ++c) {
    const T* plane = source + c * channel_step;
    T parts[lanes] = {};
    int64_t i = 0;
    if (step == 1)
      for (; i + lanes <= count; i += lanes)
        for (int64_t l = 0; l < lanes; ++l) parts[l] += plane[i + l];
    T total = 0;
    for (; i < count; ++i) total += plane[i * step];
    for (int64_t l = 0; l < lanes; ++l) total += parts[l];
    sums[c] = total;
  }
}

// The squared distance of every position of one sample from a mean; without one, from 0.
template <typename T>
void squared_distances(const T* source, int64_t channel_step, int64_t step, int64_t channels, int64_t count,
                       const T* mean, T* squares) {
  if (channel_step == 1) {
    constexpr int64_t lanes = 16;
    for (int64_t i = 0; i < count; ++i) {
      const T* row = source + i * step;
      T parts[lanes] = {};
      int64_t c = 0;
      for (; c + lanes <= channels; c += lanes)
        for (int64_t l = 0; l < lanes; ++l) {
          const T value = row[c + l] - mean[c + l];
          parts[l] += value * value;
        }
      T total = 0;
      for (; c < channels; ++c) total += (row[c] - mean[c]) * (row[c] - mean[c]);
      for (int64_t l = 0; l < lanes; ++l) total += parts[l];
      squares[i] = total;
    }
    return;
  }
  std::fill_n(squares, count, T(0));
  for (int64_t c = 0; c < channels; ++c) {
    const T* plane = source + c * channel_step;
    const T middle = mean[c];
    if (step == 1)
      for (int64_t i = 0; i < count; ++i) squares[i] += (plane[i] - middle) * (plane[i] - middle);
    else
      for (int64_t i = 0; i < count; ++i) squares[i] += (plane[i * step] - middle) * (plane[i * step] - middle);
  }
}

// The squared distance of every patch: that of its pixels, and `outside` for each tap in the padding.
template <typename T>
void sum_patches(const Problem& p, const T* squares, T outside, T* sums) {
  const int64_t positions = p.out_height * p.out_width;
  std::fill_n(sums, positions, outside * T(p.kernel_y * p.kernel_x));
  for (int64_t i = 0; i < p.kernel_y; ++i)
    for (int64_t j = 0; j < p.kernel_x; ++j) {
      const int64_t shift = j * p.dilation_x - p.pad_x;
      const int64_t low = shift < 0 ? (-shift + p.stride_x - 1) / p.stride_x : 0;
      const int64_t room = p.width - shift;
      const int64_t high = std::min(p.out_width, room > 0 ? (room + p.stride_x - 1) / p.stride_x : 0);
      for (int64_t y = 0; y < p.out_height; ++y) {
        const int64_t line = y * p.stride_y - p.pad_y + i * p.dilation_y;
        if (line < 0 || line >= p.height) continue;
        const T* source = squares + line * p.width + shift;
        T* target = sums + y * p.out_width;
        if (p.stride_x == 1)
          for (int64_t x = low; x < high; ++x) target[x] += source[x] - outside;
        else
          for (int64_t x = low; x < high; ++x) target[x] += source[x * p.stride_x] - outside;
      }
    }
}

// Scores of all positions, the means of the inputs (given unless every sample has its own), the sums of the gradients.
template <typename T>
void score(const Problem& p, const T* x, const T* grad, T* scores, T* means, T* totals) {
  const int64_t pixels = p.height * p.width, positions = p.out_height * p.out_width;
  const std::vector<T> nothing(p.channels, T(0));
  // Room for every thread, made here: inside of the parallel region nobody could catch that there is none.
  const int64_t room = pixels + 2 * positions;
  std::vector<T> rooms(p.threads * room);
#pragma omp parallel for schedule(static) num_threads(p.threads)
  for (int64_t n = 0; n < p.samples; ++n) {
    T* const squares = rooms.data() + omp_get_thread_num() * room;
    T *const patches = squares + pixels, *const sizes = patches + positions;
    const T *image = x + n * p.x_sample, *gradient = grad + n * p.grad_sample;
    T* mean = means + (p.own_means ? n * p.inputs : 0);
    if (p.own_means) {
      sum_positions(image, p.x_channel, p.x_pixel, p.inputs, pixels, mean);
      for (int64_t c = 0; c < p.inputs; ++c) mean[c] /= T(pixels);
    }
    squared_distances(image, p.x_channel, p.x_pixel, p.inputs, pixels, mean, squares);
    T outside = 0;
    for (int64_t c = 0; c < p.inputs; ++c) outside += mean[c] * mean[c];
    sum_patches(p, squares, outside, patches);
    sum_positions(gradient, p.grad_channel, p.grad_position, p.channels, positions, totals + n * p.channels);
    squared_distances(gradient, p.grad_channel, p.grad_position, p.channels, positions, nothing.data(), sizes);
    for (int64_t i = 0; i < positions; ++i)  // NaN stays NaN, so that it is noticed
      scores[n * positions + i] = __builtin_sqrt((patches[i] < 0 ? T(0) : patches[i]) * sizes[i]);
  }
}

// ---- rows

// The offset of every tap of a position's patch in a sample's pixels; `pixels` for those in the padding.
inline void list_taps(const Problem& p, int64_t position, int32_t outside, int32_t* offsets, int64_t step) {
  const int64_t y = position / p.out_width * p.stride_y - p.pad_y, x = position % p.out_width * p.stride_x - p.pad_x;
  for (int64_t i = 0; i < p.kernel_y; ++i) {
    const int64_t line = y + i * p.dilation_y;
    for (int64_t j = 0; j < p.kernel_x; ++j) {
      const int64_t column = x + j * p.dilation_x;
      const bool inside = line >= 0 && line < p.height && column >= 0 && column < p.width;
      offsets[(i * p.kernel_x + j) * step] = inside ? static_cast<int32_t>(line * p.width + column) : outside;
    }
  }
}

// From channels that lie together: `patches` is (row, tap, channel), `grads` (row, channel).
template <typename T>
void gather_rows(const Problem& p, const T* image, const T* gradient, const int64_t* rows, const T* weights,
                 int64_t count, int64_t first_position, int32_t* offsets, T* patches, T* grads, T* totals) {
  const int64_t taps = p.kernel_y * p.kernel_x;
  const int32_t outside = static_cast<int32_t>(p.height * p.width);
  for (int64_t k = 0; k < count; ++k) {
    const int64_t position = rows[k] - first_position;
    list_taps(p, position, outside, offsets, 1);
    T* patch = patches + k * taps * p.inputs;
    for (int64_t t = 0; t < taps; ++t, patch += p.inputs) {
      if (offsets[t] == outside)
        std::fill_n(patch, p.inputs, T(0));
      else
        std::memcpy(patch, image + offsets[t] * p.x_pixel, p.inputs * sizeof(T));
    }
    const T* source = gradient + position * p.grad_position;
    T* target = grads + k * p.channels;
    for (int64_t c = 0; c < p.channels; ++c) {
      target[c] = source[c] * weights[k];
      totals[c] += target[c];
    }
  }
}

// From planes: `patches` is (channel, tap, row), `grads` (channel, row), `every` rows in all.
template <typename T>
void gather_planes(const Problem& p, const T* image, const T* gradient, const int64_t* rows, const T* weights,
                   int64_t count, int64_t first_position, int64_t every, int32_t* offsets, T* plane, T* patches,
                   T* grads, T* totals) {
  const int64_t taps = p.kernel_y * p.kernel_x, pixels = p.height * p.width;
  int32_t* const places = offsets + taps * count;
  plane[pixels] = 0;  // the padding
  for (int64_t k = 0; k < count; ++k) {
    places[k] = static_cast<int32_t>(rows[k] - first_position);
    list_taps(p, places[k], static_cast<int32_t>(pixels), offsets + k, count);
  }
  for (int64_t c = 0; c < p.inputs; ++c) {
    const T* source = image + c * p.x_channel;
    for (int64_t i = 0; i < pixels; ++i) plane[i] = source[i * p.x_pixel];
    for (int64_t t = 0; t < taps; ++t) {
      T* target = patches + (c * taps + t) * every;
      const int32_t* offset = offsets + t * count;
      for (int64_t k = 0; k < count; ++k) target[k] = plane[offset[k]];
    }
  }
  for (int64_t c = 0; c < p.channels; ++c) {
    const T* source = gradient + c * p.grad_channel;
    T* target = grads + c * every;
    T total = 0;
    for (int64_t k = 0; k < count; ++k) target[k] = source[places[k] * p.grad_position] * weights[k];
    for (int64_t k = 0; k < count; ++k) total += target[k];
    totals[c] += total;
  }
}

// The rows of samples `first` to `last`, which are those from `ends[first - 1]` to `ends[last - 1]`.
template <typename T>
void gather(const Problem& p, const T* x, const T* grad, const int64_t* rows, const T* weights, const int64_t* ends,
            int64_t first, int64_t last, int64_t as_planes, T* patches, T* grads, T* totals) {
  const int64_t positions = p.out_height * p.out_width, taps = p.kernel_y * p.kernel_x;
  const int64_t begin = first ? ends[first - 1] : 0, every = ends[last - 1] - begin;
  int64_t most = 1;
  for (int64_t n = first; n < last; ++n) most = std::max(most, ends[n] - (n ? ends[n - 1] : 0));
  const int64_t pixels = p.height * p.width, room = (taps + 1) * most;
  std::vector<int32_t> rooms(p.threads * room);
  std::vector<T> planes(as_planes ? p.threads * (pixels + 1) : 0);
#pragma omp parallel for schedule(dynamic) num_threads(p.threads)
  for (int64_t n = first; n < last; ++n) {
    int32_t* const offsets = rooms.data() + omp_get_thread_num() * room;
    T* const plane = planes.data() + (as_planes ? omp_get_thread_num() * (pixels + 1) : 0);
    const int64_t from = n ? ends[n - 1] : 0, count = ends[n] - from, at = from - begin;
    const T *image = x + n * p.x_sample, *gradient = grad + n * p.grad_sample;
    T* total = totals + n * p.channels;
    if (!count) continue;
    if (as_planes)
      gather_planes(p, image, gradient, rows + from, weights + from, count, n * positions, every, offsets, plane,
                    patches + at, grads + at, total);
    else
      gather_rows(p, image, gradient, rows + from, weights + from, count, n * positions, offsets,
                  patches + at * taps * p.inputs, grads + at * p.channels, total);
  }
}

template <typename Work>
int guarded(Work work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

}  // namespace

#define ADAGP_SAMPLED(T, NAME)                                                                                    \
  extern "C" int adagp_score_##NAME(const Problem* p, const T* x, const T* grad, T* scores, T* means, T* totals) { \
    return guarded([&] { score(*p, x, grad, scores, means, totals); });                                           \
  }                                                                                                               \
  extern "C" int adagp_gather_##NAME(const Problem* p, const T* x, const T* grad, const int64_t* rows,            \
                                     const T* weights, const int64_t* ends, int64_t first, int64_t last,          \
                                     int64_t as_planes, T* patches, T* grads, T* totals) {                        \
    return guarded(                                                                                               \
        [&] { gather(*p, x, grad, rows, weights, ends, first, last, as_planes, patches, grads, totals); });       \
  }

ADAGP_SAMPLED(float, float)
ADAGP_SAMPLED(double, double)
