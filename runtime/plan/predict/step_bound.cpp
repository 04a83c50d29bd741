#include "runtime/plan/predict/step_bound.hpp"

#include <algorithm>

#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/placement/internals.hpp"
#include "runtime/plan/predict/op_traffic.hpp"

namespace spillway::plan {
namespace {

/// What sums in another order than the simulator's may be larger by, with room to spare: 10^7 ops
/// round by 10^-16 each.
constexpr double kRounding = 1e-9;

double seconds_of(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

/// Bytes or FLOPs of each lane.
struct LaneWork {
  double flops = 0, gpu_bytes = 0, up = 0, down = 0, cpu = 0, read = 0, written = 0;
};

class Sum {
 public:
  Sum(const Workload& workload, const Placement& placement) : w_(workload), p_(placement) {}

  LaneWork of_step() {
    const double micro_batches = static_cast<double>(w_.rounds) * w_.micro_batches;
    work_.flops = micro_batches * micro_batch_flops(w_);
    if (w_.tiled) {  // the vectors are no op's own
      work_.flops -=
          micro_batches * (w_.blocks.front().forward_flops + w_.blocks.front().backward_flops);
    }
    for (std::uint32_t b = 0; b < w_.blocks.size(); ++b) {
      if (recomputed(b)) work_.flops += micro_batches * w_.blocks[b].forward_flops;
      parameters(b);
      gradient(b);
      state(b);
    }
    const BoundaryTraffic boundaries = boundary_traffic(w_, p_);
    const InternalsTraffic internals = internals_traffic(w_, p_);
    const double saved = number(boundaries.saved + internals.saved);
    const double spilled = number(boundaries.spilled + internals.spilled);
    work_.up += saved;
    work_.down += saved;
    work_.written += spilled;
    // What the staging slots hold from one step to the next is not read again.
    const double held = number(state_bytes(p_.format, p_.tile_parameters)) * p_.state_slots;
    work_.read = std::max(0.0, work_.read - held) + spilled;
    return work_;
  }

 private:
  static double number(Bytes bytes) { return static_cast<double>(bytes.value()); }

  [[nodiscard]] bool in_layer(std::uint32_t b) const {
    const std::uint32_t layer = w_.layer_of(b);
    return layer > 0 && layer < w_.head_layer();
  }
  [[nodiscard]] bool recomputed(std::uint32_t b) const {
    if (!in_layer(b) || (w_.tiled && !w_.blocks[b].feeds_backward)) return false;
    return !p_.blocks[w_.first_block(w_.layer_of(b))].saved;
  }

  /// Uploads in one pass forward and backward.
  [[nodiscard]] double visits(std::uint32_t b) const {
    if (in_layer(b)) return w_.tiled && recomputed(b) ? 3 : 2;
    const bool uses_loss = w_.loss_blocks().contains(b) || w_.tied_blocks().contains(b);
    const double of_loss = w_.tiled ? 2 : 1;
    return (w_.layer_of(b) == 0 ? 1 : 0) + (uses_loss ? of_loss : 0);
  }

  void parameters(std::uint32_t b) {
    const BlockCut& place = p_.blocks[b];
    const double passes = p_.order == WorkOrder::layer_major
                              ? w_.rounds
                              : static_cast<double>(w_.rounds) * w_.micro_batches;
    const double bytes = static_cast<double>(w_.blocks[b].padded_parameters.value()) *
                         static_cast<double>(size_of(w_.compute));
    if (!place.resident()) {
      work_.up += passes * visits(b) * bytes;
    } else if (place.state != Tier::device) {
      work_.up += bytes;
    }
  }

  void gradient(std::uint32_t b) {
    const BlockCut& place = p_.blocks[b];
    const double first = number(rounding_traffic(w_, p_, b, 0));
    const double later = w_.rounds > 1 ? number(rounding_traffic(w_, p_, b, 1)) : 0;
    work_.gpu_bytes += first + later * (w_.rounds - 1);
    if (place.state == Tier::device) return;
    const auto padded = static_cast<double>(w_.blocks[b].padded_parameters.value());
    if (place.gradients == Tier::device) {
      work_.down += padded * sizeof(float);
      return;
    }
    work_.down += padded * static_cast<double>(size_of(w_.compute)) * w_.rounds;
    if (w_.rounds == 1) return;
    work_.cpu +=
        number(summing_traffic(w_, b, 0)) + number(summing_traffic(w_, b, 1)) * (w_.rounds - 1);
  }

  /// Norms, updates and what the disk moves, tile by tile: all but the last of a block are alike.
  void state(std::uint32_t b) {
    const std::uint64_t padded = w_.blocks[b].padded_parameters.value();
    const std::uint64_t tile = p_.tile_parameters.value();
    const std::uint64_t whole = padded / tile;
    tiles({b, {}, p_.tile_parameters}, static_cast<double>(whole));
    if (padded % tile != 0) tiles({b, {}, ElementCount{padded % tile}}, 1);
  }

  void tiles(const Tile& tile, double count) {
    const Tier home = p_.blocks[tile.block].state;
    const double passes =
        count * (number(update_traffic(w_, p_, tile)) + number(norm_traffic(w_, tile)));
    (home == Tier::device ? work_.gpu_bytes : work_.cpu) += passes;
    if (home != Tier::nvme) return;
    work_.read += count * number(state_bytes(p_.format, tile.count));
    work_.written += count * number(slot_bytes(p_.format, tile.count));
  }

  const Workload& w_;
  const Placement& p_;
  LaneWork work_;
};

}  // namespace

double least_step_seconds(const Workload& workload, const Placement& placement,
                          const MachineProfile& profile) {
  const LaneWork work = Sum(workload, placement).of_step();
  // Every block but the head runs forward and backward, and each run is an op.
  const double ops = static_cast<double>(workload.rounds) * workload.micro_batches *
                     (2 * static_cast<double>(workload.blocks.size()) - 2);
  const double gpu =
      seconds_of(work.flops, profile.gpu_flops) + seconds_of(work.gpu_bytes, profile.gpu_update);
  const double cpu = seconds_of(work.cpu, profile.update);
  const double longest = std::max(
      {gpu + ops * profile.op_overhead_seconds, profile.cpu_shares_gpu ? gpu + cpu : cpu,
       seconds_of(work.up, profile.h2d), seconds_of(work.down, profile.d2h),
       seconds_of(work.read, profile.nvme_read), seconds_of(work.written, profile.nvme_write)});
  return longest * (1 - kRounding);
}

}  // namespace spillway::plan
