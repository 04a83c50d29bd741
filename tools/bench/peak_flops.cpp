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

/// Whether what follows the name of a board makes it a slower or faster one.
bool is_another_board(std::string_view rest) {
  return rest.starts_with(" Laptop") || rest.starts_with(" Ti") || rest.starts_with(" SUPER") ||
         rest.starts_with(" D");
}

}  // namespace

std::optional<double> peak_flops(std::string_view gpu, DType compute) {
  for (const Peak& peak : kPeaks) {
    const std::size_t at = gpu.find(peak.gpu);
    if (at == std::string_view::npos) continue;
    const std::string_view rest = gpu.substr(at + peak.gpu.size());
    if (!rest.empty() && rest.front() >= '0' && rest.front() <= '9') continue;  // an A1000
    if (is_another_board(rest)) return std::nullopt;
    return (compute == DType::fp32 ? 0.5 : 1.0) * peak.tflops * 1e12;
  }
  return std::nullopt;
}

}  // namespace spillway::bench
