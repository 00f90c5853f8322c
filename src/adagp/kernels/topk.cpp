// The weight gradient of a 2-d convolution from k output gradients per sample and channel.
//
// First each (sample, output channel) is reduced to k positions and values. Then each value adds one patch of the input
// to its channel's gradient. Threads share the output channels, never the samples, so that every sum is formed in the
// same order whatever their number.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include <omp.h>

namespace {

using std::int32_t;
using std::int64_t;

// Half of a usual second-level cache: what is read again and again by every output channel must stay there.
constexpr int64_t kCacheBytes = 512 * 1024;
// Packing the input pays once each of its entries is read about this often, measured: channels that lie together are
// read well without, while planes make every patch a walk through memory.
constexpr double kReadsToPackRows = 4.0;
constexpr double kReadsToPackPlanes = 0.3;
// Entries read or packed, or eight products added: about half a millisecond. For less, waking a thread and waiting for it
// is a poor bargain on a machine that does other work as well.
constexpr double kWorkPerThread = 8e5;
// As wide as the processor's own: a compiler makes poor work of wider ones.
#if defined(__AVX512F__)
constexpr int64_t kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int64_t kVectorBytes = 32;
#else
constexpr int64_t kVectorBytes = 16;
#endif
// Vectors of a wide block of channels, whose sums are all held in registers.
constexpr int kWide = kVectorBytes == 64 ? 4 : 8;
constexpr int64_t kAlignment = 64;
// Positions by which planes are turned into rows, or back: a few lines of each plane.
constexpr int64_t kTile = 32;

}  // namespace

// Mirrored field by field in topk_compiled.py. Strides count elements; a position or pixel counts row by row.
struct Problem {
  int64_t samples, groups, k, threads;
  int64_t channels, fan, kernel_y, kernel_x;  // the weight's shape
  int64_t height, width, out_height, out_width;
  int64_t stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
  int64_t x_sample, x_channel, x_pixel;
  int64_t grad_sample, grad_channel, grad_position;
  int64_t out_fan, out_tap;  // the gradient's strides within one output channel
};

namespace {

template <typename T>
struct Simd {
  // Unaligned, and allowed to alias: tensors come as they are.
  typedef T Vector __attribute__((vector_size(kVectorBytes), aligned(sizeof(T)), may_alias));
  static constexpr int64_t lanes = kVectorBytes / sizeof(T);
};

template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t count) {
    const size_t bytes = (count * sizeof(T) / kAlignment + 1) * kAlignment;
    data_ = static_cast<T*>(std::aligned_alloc(kAlignment, bytes));
    if (data_ == nullptr) throw std::bad_alloc();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }
  T* get() { return data_; }

 private:
  T* data_;
};

// ---- which entries are kept ----

template <typename T>
T magnitude(T value) {
  return value < 0 ? -value : value;
}

// One number from all lanes. Halving spares most of them the wait for each other.
template <typename T, typename Join>
T fold(typename Simd<T>::Vector vector, Join join) {
  T lanes[Simd<T>::lanes];
  std::memcpy(lanes, &vector, sizeof(vector));
  for (int64_t half = Simd<T>::lanes / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) lanes[i] = join(lanes[i], lanes[i + half]);
  return lanes[0];
}

// The first position of this magnitude; 0 where there is none, as when all are NaN.
template <typename T>
int64_t first_equal(const T* values, int64_t count, T size) {
  constexpr int64_t stretch = 4 * Simd<T>::lanes;
  int64_t i = 0;
  for (; i + stretch <= count; i += stretch) {
    int32_t found = 0;
    for (int64_t j = 0; j < stretch; ++j) found |= magnitude(values[i + j]) == size;
    if (found) break;
  }
  for (; i < count; ++i)
    if (magnitude(values[i]) == size) return i;
  return 0;
}

// The first position of the largest magnitude, and the sum, of contiguous values.
template <typename T>
void largest(const T* values, int64_t count, int32_t* position, T* sum) {
  using V = typename Simd<T>::Vector;
  constexpr int64_t lanes = Simd<T>::lanes;
  T most = -1, total = 0;
  int64_t i = 0;
  if (count >= 2 * lanes) {
    V most_a = V{} - 1, most_b = V{} - 1, sum_a = V{}, sum_b = V{};
    for (; i + 2 * lanes <= count; i += 2 * lanes) {
      const V a = *reinterpret_cast<const V*>(values + i), b = *reinterpret_cast<const V*>(values + i + lanes);
      const V size_a = a < 0 ? -a : a, size_b = b < 0 ? -b : b;
      most_a = size_a > most_a ? size_a : most_a;
      most_b = size_b > most_b ? size_b : most_b;
      sum_a += a;
      sum_b += b;
    }
    const auto larger = [](auto a, auto b) { return a > b ? a : b; };
    most = fold<T>(larger(most_a, most_b), larger);
    total = fold<T>(sum_a + sum_b, [](auto a, auto b) { return a + b; });
  }
  for (; i < count; ++i) {
    most = std::max(most, magnitude(values[i]));
    total += values[i];
  }
  *sum = total;
  *position = static_cast<int32_t>(first_equal(values, count, most));
}

// The same for `lanes` neighbouring channels whose positions lie `step` apart.
template <typename T, int vectors>
void largest_of_channels(const T* values, int64_t count, int64_t step, int32_t* positions, T* sums, int64_t every) {
  using V = typename Simd<T>::Vector;
  using Mask = decltype(V{} > V{});
  V most[vectors], total[vectors];
  Mask where[vectors];
  for (int v = 0; v < vectors; ++v) most[v] = V{} - 1, total[v] = V{}, where[v] = Mask{};
  for (int64_t i = 0; i < count; ++i) {
    const V* row = reinterpret_cast<const V*>(values + i * step);
    for (int v = 0; v < vectors; ++v) {
      const V value = row[v];
      const V size = value < 0 ? -value : value;
      const Mask more = size > most[v];
      most[v] = more ? size : most[v];
      where[v] = more ? Mask{} + static_cast<int32_t>(i) : where[v];
      total[v] += value;
    }
  }
  for (int v = 0; v < vectors; ++v) {
    for (int64_t lane = 0; lane < Simd<T>::lanes; ++lane) {
      const int64_t channel = v * Simd<T>::lanes + lane;
      positions[channel * every] = static_cast<int32_t>(where[v][lane]);
      sums[channel * every] = total[v][lane];
    }
  }
}

// k positions by magnitude, the first of equals before the others, and values that add up to the channel's sum.
template <typename T>
void largest_k(const T* values, int64_t count, int64_t k, T* sizes, int32_t* positions, T* kept) {
  if (k == count) {
    for (int64_t i = 0; i < k; ++i) positions[i] = static_cast<int32_t>(i), kept[i] = values[i];
    return;
  }
  // Every `columns`-th position shares a best size, so that taking one out asks for a look at its column alone.
  constexpr int64_t columns = Simd<T>::lanes;
  T best[columns];
  std::fill_n(best, columns, T(-1));
  for (int64_t first = 0; first < count; first += columns) {
    const int64_t width = std::min(columns, count - first);
    for (int64_t i = 0; i < width; ++i) {
      const T value = values[first + i];
      // NaN compares with nothing: it counts as infinite, and the sum carries it on.
      const T size = value != value ? std::numeric_limits<T>::infinity() : magnitude(value);
      sizes[first + i] = size;
      best[i] = size > best[i] ? size : best[i];
    }
  }
  T kept_sum = 0, kept_size = 0;
  for (int64_t i = 0; i < k; ++i) {
    const T most = *std::max_element(best, best + columns);
    const int64_t position = first_equal(sizes, count, most), column = position % columns;
    positions[i] = static_cast<int32_t>(position);
    kept[i] = values[position];
    kept_sum += kept[i];
    kept_size += magnitude(kept[i]);
    sizes[position] = std::numeric_limits<T>::quiet_NaN();  // equals no size and is no maximum
    best[column] = -1;
    for (int64_t j = column; j < count; j += columns) best[column] = std::max(best[column], sizes[j]);
  }
  int32_t unused;
  T total;
  largest(values, count, &unused, &total);
  if (10 * magnitude(kept_sum) <= kept_size) {
    const T share = (total - kept_sum) / k;
    for (int64_t i = 0; i < k; ++i) kept[i] += share;
  } else {
    const T factor = total / kept_sum;
    for (int64_t i = 0; i < k; ++i) kept[i] *= factor;
  }
}

// Entries of a few channels of one sample; `positions` and `kept` are (channel, sample, k).
template <typename T>
void select(const Problem& p, const T* grad, int64_t sample, int64_t first, int64_t channels, T* row,
            T* sizes, int32_t* positions, T* kept) {
  constexpr int64_t lanes = Simd<T>::lanes;
  const int64_t count = p.out_height * p.out_width, every = p.samples * p.k;
  const T* source = grad + sample * p.grad_sample + first * p.grad_channel;
  int32_t* at = positions + first * every + sample * p.k;
  T* value = kept + first * every + sample * p.k;
  int64_t c = 0;
  if (p.k == 1 && p.grad_channel == 1) {
    for (; c + 4 * lanes <= channels; c += 4 * lanes)
      largest_of_channels<T, 4>(source + c, count, p.grad_position, at + c * every, value + c * every, every);
    for (; c + lanes <= channels; c += lanes)
      largest_of_channels<T, 1>(source + c, count, p.grad_position, at + c * every, value + c * every, every);
  }
  const bool copy = p.grad_position != 1;
  if (copy)  // in tiles that stay in the nearest cache, as the channels are neighbours more often than not
    for (int64_t first = 0; first < count; first += kTile)
      for (int64_t d = c; d < channels; ++d)
        for (int64_t i = first; i < std::min(first + kTile, count); ++i)
          row[d * count + i] = source[d * p.grad_channel + i * p.grad_position];
  for (; c < channels; ++c) {
    const T* values = copy ? row + c * count : source + c * p.grad_channel;
    if (p.k == 1)
      largest(values, count, at + c * every, value + c * every);
    else
      largest_k(values, count, p.k, sizes, at + c * every, value + c * every);
  }
}

// ---- what the entries add up to ----

// One block of channels of one group of one sample, pixel by pixel, zeros up to whole vectors.
template <typename T>
void pack(const T* source, int64_t channel_step, int64_t pixel_step, int64_t channels, int64_t pixels, int64_t width,
          T* target) {
  for (int64_t first = 0; first < pixels; first += kTile) {
    const int64_t last = std::min(first + kTile, pixels);
    if (channel_step == 1) {
      for (int64_t i = first; i < last; ++i)
        for (int64_t c = 0; c < channels; ++c) target[i * width + c] = source[i * pixel_step + c];
    } else {
      for (int64_t c = 0; c < channels; ++c)
        for (int64_t i = first; i < last; ++i) target[i * width + c] = source[c * channel_step + i * pixel_step];
    }
    for (int64_t i = first; i < last; ++i)
      for (int64_t c = channels; c < width; ++c) target[i * width + c] = 0;
  }
}

template <typename T>
struct Entry {
  int32_t pixel;
  T value;
};

template <typename T, int vectors>
void add_rows(const Entry<T>* entries, int64_t count, const T* packed, bool fresh, T* sums) {
  using V = typename Simd<T>::Vector;
  V* target = reinterpret_cast<V*>(sums);
  V total[vectors];
  for (int v = 0; v < vectors; ++v) total[v] = fresh ? V{} : target[v];
  for (int64_t i = 0; i < count; ++i) {
    const V* row = reinterpret_cast<const V*>(packed) + static_cast<int64_t>(entries[i].pixel) * vectors;
    for (int v = 0; v < vectors; ++v) total[v] += row[v] * entries[i].value;
  }
  for (int v = 0; v < vectors; ++v) target[v] = total[v];
}

// The pixels that the entries of one output channel ask for, tap by tap, those in the padding left out. Pixels count
// from the start of their bundle of samples; entries are (bundle, channel, tap), each with room for a whole bundle.
template <typename T>
void list_entries(const Problem& p, int64_t bundle, int64_t c, const int32_t* positions, const T* kept,
                  Entry<T>* entries, int32_t* counts) {
  const int64_t taps = p.kernel_y * p.kernel_x, room = bundle * p.k;
  for (int64_t first = 0; first < p.samples; first += bundle) {
    Entry<T>* list = entries + (first * p.channels + c * bundle) * taps * p.k;
    int32_t* count = counts + (first / bundle * p.channels + c) * taps;
    std::fill_n(count, taps, 0);
    for (int64_t n = first; n < std::min(first + bundle, p.samples); ++n)
      for (int64_t e = (c * p.samples + n) * p.k; e < (c * p.samples + n + 1) * p.k; ++e) {
        const int64_t y = positions[e] / p.out_width * p.stride_y - p.pad_y;
        const int64_t z = positions[e] % p.out_width * p.stride_x - p.pad_x;
        for (int64_t i = 0; i < p.kernel_y; ++i) {
          const int64_t row = y + i * p.dilation_y;
          if (row < 0 || row >= p.height) continue;
          for (int64_t j = 0; j < p.kernel_x; ++j) {
            const int64_t column = z + j * p.dilation_x, tap = i * p.kernel_x + j;
            if (column < 0 || column >= p.width) continue;
            const int64_t pixel = ((n - first) * p.height + row) * p.width + column;
            list[tap * room + count[tap]++] = {static_cast<int32_t>(pixel), kept[e]};
          }
        }
      }
  }
}

// For many reads of each input entry. A task is a block of input channels with some output channels: the block of a
// bundle of samples is packed small enough for the cache, and then read again by every output channel.
template <typename T, int vectors>
class Packed {
 public:
  explicit Packed(const Problem& p)
      : p_(p),
        pixels_(p.height * p.width),
        taps_(p.kernel_y * p.kernel_x),
        blocks_((p.fan + block - 1) / block),
        bundle_(std::min(p.samples, std::max<int64_t>(1, kCacheBytes / (pixels_ * block * sizeof(T))))),
        bundles_((p.samples + bundle_ - 1) / bundle_),
        entries_(bundles_ * bundle_ * p.channels * taps_ * p.k),
        counts_(bundles_ * p.channels * taps_),
        packed_(p.threads * bundle_ * pixels_ * block),
        sums_(blocks_ * p.channels * taps_ * block) {}

  void add(const T* x, const int32_t* positions, const T* kept, T* out) {
#pragma omp for schedule(dynamic, 4)
    for (int64_t c = 0; c < p_.channels; ++c)
      list_entries(p_, bundle_, c, positions, kept, entries_.get(), counts_.get());
    const int64_t channels = p_.channels / p_.groups;
    const int64_t parts = std::min(channels, (2 * p_.threads - 1) / (p_.groups * blocks_) + 1);
#pragma omp for schedule(dynamic) collapse(3) nowait
    for (int64_t group = 0; group < p_.groups; ++group)
      for (int64_t b = 0; b < blocks_; ++b)
        for (int64_t part = 0; part < parts; ++part)
          add_block(x, group, b, group * channels + channels * part / parts,
                    group * channels + channels * (part + 1) / parts, out);
  }

 private:
  static constexpr int64_t block = vectors * Simd<T>::lanes;

  void add_block(const T* x, int64_t group, int64_t b, int64_t from, int64_t to, T* out) {
    T* const slice = packed_.get() + omp_get_thread_num() * bundle_ * pixels_ * block;
    const int64_t width = std::min(block, p_.fan - b * block);
    const T* const source = x + (group * p_.fan + b * block) * p_.x_channel;
    for (int64_t turn = 0; turn < bundles_; ++turn) {
      const int64_t first = turn * bundle_, samples = std::min(bundle_, p_.samples - first);
      for (int64_t n = 0; n < samples; ++n)
        pack(source + (first + n) * p_.x_sample, p_.x_channel, p_.x_pixel, width, pixels_, block,
             slice + n * pixels_ * block);
      for (int64_t c = from; c < to; ++c) {
        T* const sum = sums_.get() + (b * p_.channels + c) * taps_ * block;
        const Entry<T>* list = entries_.get() + (first * p_.channels + c * bundle_) * taps_ * p_.k;
        const int32_t* count = counts_.get() + (turn * p_.channels + c) * taps_;
        for (int64_t tap = 0; tap < taps_; ++tap)
          add_rows<T, vectors>(list + tap * bundle_ * p_.k, count[tap], slice, turn == 0, sum + tap * block);
        if (turn + 1 == bundles_) unpack(sum, width, out + c * p_.fan * taps_ + b * block * p_.out_fan);
      }
    }
  }

  void unpack(const T* sum, int64_t width, T* target) {
    if (p_.out_fan == 1) {
      for (int64_t tap = 0; tap < taps_; ++tap)
        for (int64_t i = 0; i < width; ++i) target[tap * p_.out_tap + i] = sum[tap * block + i];
    } else {
      for (int64_t i = 0; i < width; ++i)
        for (int64_t tap = 0; tap < taps_; ++tap) target[i * p_.out_fan + tap] = sum[tap * block + i];
    }
  }

  const Problem& p_;
  const int64_t pixels_, taps_, blocks_, bundle_, bundles_;
  Buffer<Entry<T>> entries_;
  Buffer<int32_t> counts_;
  Buffer<T> packed_, sums_;
};

// For few reads of each input entry: patches are taken from where they lie, from a bundle of samples at a time.
template <typename T>
class InPlace {
 public:
  explicit InPlace(const Problem& p) : p_(p) {}

  void add(const T* x, const int32_t* positions, const T* kept, T* out) {
    const int64_t size = p_.fan * p_.kernel_y * p_.kernel_x, group_channels = p_.channels / p_.groups;
    const int64_t sample_bytes = p_.height * p_.width * p_.fan * p_.groups * sizeof(T);
    const int64_t bundle = std::max<int64_t>(1, kCacheBytes / sample_bytes);
    for (int64_t first = 0; first < p_.samples; first += bundle) {
      const int64_t last = std::min(first + bundle, p_.samples);
      // A static schedule gives a thread the same channels in every bundle, so that none has to wait for another.
#pragma omp for schedule(static) nowait
      for (int64_t c = 0; c < p_.channels; ++c) {
        if (first == 0) std::fill_n(out + c * size, size, T(0));
        for (int64_t n = first; n < last; ++n)
          for (int64_t e = (c * p_.samples + n) * p_.k; e < (c * p_.samples + n + 1) * p_.k; ++e)
            add_patch(x + n * p_.x_sample + c / group_channels * p_.fan * p_.x_channel, positions[e], kept[e],
                      out + c * size);
      }
    }
  }

 private:
  void add_patch(const T* __restrict source, int64_t position, T value, T* __restrict target) {
    const int64_t y = position / p_.out_width * p_.stride_y - p_.pad_y;
    const int64_t z = position % p_.out_width * p_.stride_x - p_.pad_x;
    // Taps before these lie in the padding, as do those from the upper ends on.
    const int64_t low_y = y < 0 ? (-y + p_.dilation_y - 1) / p_.dilation_y : 0;
    const int64_t low_x = z < 0 ? (-z + p_.dilation_x - 1) / p_.dilation_x : 0;
    const int64_t high_y = std::min(p_.kernel_y, (p_.height - y + p_.dilation_y - 1) / p_.dilation_y);
    const int64_t high_x = std::min(p_.kernel_x, (p_.width - z + p_.dilation_x - 1) / p_.dilation_x);
    const int64_t step_y = p_.dilation_y * p_.width * p_.x_pixel, step_x = p_.dilation_x * p_.x_pixel;
    source += (y * p_.width + z) * p_.x_pixel;
    if (p_.x_channel == 1 && p_.out_fan == 1) {
      for (int64_t i = low_y; i < high_y; ++i)
        for (int64_t j = low_x; j < high_x; ++j) {
          const T* row = source + i * step_y + j * step_x;
          T* sum = target + (i * p_.kernel_x + j) * p_.out_tap;
          for (int64_t f = 0; f < p_.fan; ++f) sum[f] += value * row[f];
        }
    } else {
      for (int64_t f = 0; f < p_.fan; ++f)
        for (int64_t i = low_y; i < high_y; ++i)
          for (int64_t j = low_x; j < high_x; ++j)
            target[f * p_.out_fan + (i * p_.kernel_x + j) * p_.out_tap] +=
                value * source[f * p_.x_channel + i * step_y + j * step_x];
    }
  }

  const Problem& p_;
};

// Both steps in one parallel region: each start and end of one costs more than a small layer's sums.
template <typename T, typename Way>
void run(const Problem& p, const T* x, const T* grad, T* out) {
  constexpr int64_t stretch = 4 * Simd<T>::lanes;
  const int64_t count = p.out_height * p.out_width, stretches = (p.channels + stretch - 1) / stretch;
  Buffer<int32_t> positions(p.channels * p.samples * p.k);
  Buffer<T> kept(p.channels * p.samples * p.k), sizes(p.threads * count);
  Buffer<T> rows(p.grad_position == 1 ? 0 : p.threads * stretch * count);
  Way way(p);
#pragma omp parallel num_threads(p.threads)
  {
    T* const row = rows.get() + (p.grad_position == 1 ? 0 : omp_get_thread_num() * stretch * count);
    T* const size = sizes.get() + omp_get_thread_num() * count;
#pragma omp for schedule(dynamic, 4) collapse(2)
    for (int64_t n = 0; n < p.samples; ++n)
      for (int64_t s = 0; s < stretches; ++s)
        select(p, grad, n, s * stretch, std::min(stretch, p.channels - s * stretch), row, size,
               positions.get(), kept.get());
    way.add(x, positions.get(), kept.get(), out);
  }
}

template <typename T>
void choose(Problem p, const T* x, const T* grad, T* out) {
  const double pixels = double(p.height) * p.width, patch = double(p.fan) * p.kernel_y * p.kernel_x;
  const double reads = double(p.channels / p.groups) * p.k * p.kernel_y * p.kernel_x / pixels;
  const bool in_place = p.fan < Simd<T>::lanes || reads < (p.x_channel == 1 ? kReadsToPackRows : kReadsToPackPlanes);
  const double work = double(p.samples) * (double(p.channels) * p.out_height * p.out_width +
                                           (in_place ? 0.0 : pixels * p.fan * p.groups) + p.k * p.channels * patch / 8);
  p.threads = std::min(p.threads, 1 + static_cast<int64_t>(work / kWorkPerThread));
  // Blocks as wide as still leave every thread two tasks: a wider one asks less often where its next row is.
  const auto tasks = [&](int64_t vectors) { return p.groups * p.fan / (vectors * Simd<T>::lanes); };
  if (in_place)
    run<T, InPlace<T>>(p, x, grad, out);
  else if (tasks(kWide) >= 2 * p.threads)
    run<T, Packed<T, kWide>>(p, x, grad, out);
  else if (tasks(kWide / 2) >= 2 * p.threads)
    run<T, Packed<T, kWide / 2>>(p, x, grad, out);
  else
    run<T, Packed<T, kWide / 4>>(p, x, grad, out);
}

template <typename T>
int guarded(const Problem* p, const T* x, const T* grad, T* out) {
  try {
    choose(*p, x, grad, out);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

}  // namespace

extern "C" int adagp_topk_float(const Problem* p, const float* x, const float* grad, float* out) {
  return guarded(p, x, grad, out);
}

extern "C" int adagp_topk_double(const Problem* p, const double* x, const double* grad, double* out) {
  return guarded(p, x, grad, out);
}
