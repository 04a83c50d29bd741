#include "tools/bench/peak_flops.hpp"

#include <array>

namespace spillway::bench {
namespace {

struct Peak {
  std::string_view gpu;  ///< part of the driver's name
  double tflops;         ///< bf16 and fp16
};

// NVIDIA's data sheets, half of the figures "with sparsity"; what they do not say, as
// docs/machines/*.json derives it. The first row that is part of the name counts: special boards
// stand before the plain name of their chip.
constexpr std::array kPeaks = {
    Peak{"H100 PCIe", 756},    Peak{"H100 NVL", 835}, Peak{"GH200", 989.4},
    Peak{"H200 NVL", 835},     Peak{"H200", 989.4},   Peak{"H100", 989.4},
    Peak{"H800", 989.4},       Peak{"B300", 2250},    Peak{"B200", 2250},
    Peak{"B100", 1750},        Peak{"A100", 312},     Peak{"A800", 312},
    Peak{"A40", 149.7},        Peak{"A10G", 70},      Peak{"A10", 125},
    Peak{"L40S", 362},         Peak{"L40", 181},      Peak{"L4", 121},
    Peak{"RTX 4090", 165.2},   Peak{"RTX 3090", 71},  Peak{"RTX 5090", 209.5},
    Peak{"RTX 4060 Ti", 44.1}, Peak{"GB10", 125},
};

}  // namespace

std::optional<double> peak_flops(std::string_view gpu, DType compute) {
  for (const Peak& peak : kPeaks) {
    if (gpu.find(peak.gpu) == std::string_view::npos) continue;
    return (compute == DType::fp32 ? 0.5 : 1.0) * peak.tflops * 1e12;
  }
  return std::nullopt;
}

}  // namespace spillway::bench
