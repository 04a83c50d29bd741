// TrafficSet: the traffic-only kernels of one vector instruction set; see cpu_adam/traffic.hpp.
#pragma once

#include "cpu_adam/detail/kernel_set.hpp"

namespace spillway::cpu_adam::detail {

struct TrafficSet {
  void (*move[kFormatRowCount][kDTypes])(const UpdateRange&);  ///< [row][gradient]
};

extern const TrafficSet kPortableTraffic;
#if defined(__x86_64__)
extern const TrafficSet kAvx2Traffic;
extern const TrafficSet kAvx512Traffic;
#endif

/// Fills a TrafficSet from a struct of static function templates.
template <class Entries>
constexpr TrafficSet make_traffic_set() {
  using enum DType;
  TrafficSet set{};
  [&set]<std::size_t... row>(std::index_sequence<row...>) {
    ((set.move[row][index_of(fp32)] =
          Entries::template move<kFormatRows[row].format, fp32, kFormatRows[row].parameter>),
     ...);
    ((set.move[row][index_of(bf16)] =
          Entries::template move<kFormatRows[row].format, bf16, kFormatRows[row].parameter>),
     ...);
    ((set.move[row][index_of(fp16)] =
          Entries::template move<kFormatRows[row].format, fp16, kFormatRows[row].parameter>),
     ...);
  }(std::make_index_sequence<kFormatRowCount>{});
  return set;
}

}  // namespace spillway::cpu_adam::detail
