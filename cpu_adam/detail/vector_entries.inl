// The entry points of one vector instruction set: they set the floating-point environment and pick
// the instance of a pass. Included once by each instruction set's source, after the passes.
namespace spillway::cpu_adam::detail {
namespace {

struct Entries {
  template <DType gradient, DType parameter>
  static void update(const UpdateScalars& scalars, const UpdateRange& range) {
    const FlushDenormals guard;
    if (scalars.mode == DecayMode::decoupled) {
      update_with<gradient, parameter, DecayMode::decoupled>(scalars, range);
    } else {
      update_with<gradient, parameter, DecayMode::l2>(scalars, range);
    }
  }

  template <DType dtype>
  static void sum_squares(const void* gradient, std::size_t count, double* leaves) {
    const FlushDenormals guard;
    for (std::size_t first = 0; first < count; first += kLeafParameters) {
      *leaves++ = leaf_sum<dtype>(gradient, first, std::min(kLeafParameters, count - first));
    }
  }

  template <DType dtype>
  static void accumulate(const void* source, float* target, std::size_t count, bool first) {
    const FlushDenormals guard;
    accumulate_range<dtype>(source, target, count, first);
  }

  template <DType dtype>
  static void cast_parameters(const float* master, void* target, std::size_t count) {
    const FlushDenormals guard;
    narrow_range<dtype, Rounding::parameter>(master, target, count);
  }

  template <DType dtype>
  static void round_gradient(const float* source, void* target, std::size_t count) {
    const FlushDenormals guard;
    narrow_range<dtype, Rounding::gradient>(source, target, count);
  }
};

}  // namespace
}  // namespace spillway::cpu_adam::detail
