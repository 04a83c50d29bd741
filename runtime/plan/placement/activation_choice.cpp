#include "runtime/plan/placement/activation_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string_view>

#include "runtime/base/error.hpp"

namespace spillway::plan {
namespace {

double seconds_of(double amount, double rate, std::string_view name) {
  if (amount == 0) return 0;
  check(rate > 0, ErrorCode::invalid_argument,
        fmt::format("{} is used and has no rate; measure the machine profile again", name));
  return amount / rate;
}

double as_double(Bytes bytes) { return static_cast<double>(bytes.value()); }

double saved_per_byte(const ActivationGroup& group) {
  if (group.recompute_flops == 0) return 0;
  if (group.bytes.value() == 0) return std::numeric_limits<double>::infinity();
  return group.recompute_flops / as_double(group.bytes);
}

}  // namespace

PassSeconds pass_seconds(const ActivationSetting& setting, Bytes offloaded,
                         double recompute_flops) {
  const Bytes spilled = offloaded > setting.host_room ? offloaded - setting.host_room : Bytes{0};
  const double up_backward = as_double(setting.parameters_up + offloaded);
  return {.forward = std::max({seconds_of(setting.forward_flops, setting.gpu_flops, "the GPU"),
                               seconds_of(as_double(setting.parameters_up), setting.h2d, "h2d"),
                               seconds_of(as_double(offloaded), setting.d2h, "d2h"),
                               seconds_of(as_double(spilled), setting.nvme_write, "nvme_write")}),
          .backward = std::max(
              {seconds_of(setting.backward_flops + recompute_flops, setting.gpu_flops, "the GPU"),
               seconds_of(up_backward, setting.h2d, "h2d"),
               seconds_of(as_double(setting.gradients_down), setting.d2h, "d2h"),
               setting.update_seconds,
               seconds_of(as_double(spilled), setting.nvme_read, "nvme_read")})};
}

ActivationChoice choose_activations(const ActivationSetting& setting,
                                    std::span<const ActivationGroup> groups) {
  std::vector<std::size_t> order(groups.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t left, std::size_t right) {
    return saved_per_byte(groups[left]) > saved_per_byte(groups[right]);
  });
  // Summed from the far end, so that offloading everything leaves exactly 0.
  std::vector<double> recompute(groups.size() + 1, 0);
  for (std::size_t i = groups.size(); i > 0; --i) {
    recompute[i - 1] = recompute[i] + groups[order[i - 1]].recompute_flops;
  }

  ActivationChoice best{.seconds = pass_seconds(setting, Bytes{0}, recompute[0])};
  std::size_t best_count = 0;
  Bytes bytes;
  for (std::size_t count = 1; count <= groups.size(); ++count) {
    bytes += groups[order[count - 1]].bytes;
    const PassSeconds seconds = pass_seconds(setting, bytes, recompute[count]);
    if (seconds.total() < best.seconds.total()) {
      best.bytes = bytes;
      best.seconds = seconds;
      best_count = count;
    }
  }
  best.offloaded.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(best_count));
  return best;
}

}  // namespace spillway::plan
