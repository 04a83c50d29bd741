#include "runtime/plan/predict/price.hpp"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/placement/dataflow_graph.hpp"
#include "runtime/plan/placement/partition.hpp"
#include "runtime/plan/placement/saved_activations.hpp"
#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/step/op_traffic.hpp"

namespace spillway::plan {
namespace {

constexpr double LaneWork::*kParts[] = {
    &LaneWork::flops, &LaneWork::gpu_bytes, &LaneWork::up,     &LaneWork::down, &LaneWork::cpu,
    &LaneWork::net,   &LaneWork::node,      &LaneWork::tensor, &LaneWork::read, &LaneWork::written};

double number(Bytes bytes) { return static_cast<double>(bytes.value()); }

double seconds_of(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

/// Norms, updates and what the disk moves of `count` tiles alike.
void add_tiles(LaneWork& work, const Workload& w, const Placement& p, const Tile& tile,
               std::uint64_t count) {
  const Tier home = p.blocks[tile.block].state;
  const auto tiles = static_cast<double>(count);
  const double bytes = tiles * (number(update_traffic(w, p, tile)) + number(norm_traffic(w, tile)));
  (home == Tier::device ? work.gpu_bytes : work.cpu) += bytes;
  if (home != Tier::nvme) return;
  work.read += tiles * number(state_bytes(p.format, tile.count));
  work.written += tiles * number(slot_bytes(p.format, tile.count));
}

/// Adds what a rank sends for a block's passes and gradients.
void add_exchange(LaneWork& work, const Workload& w, std::uint32_t b, bool streamed) {
  const double visits = w.gathers() ? w.visits(b) : w.shares_updates() ? 1 : 0;
  const double on_node = w.keeps_secondary(b) ? visits - 1 : 0;
  work.net = (visits - on_node) * number(gather_traffic(w, b)) +
             w.rounds * number(reduction_traffic(w, b));
  work.node = on_node * number(node_gather_traffic(w, b));
  if (!w.keeps_secondary(b)) return;
  // What a node keeps is uploaded in place of the shard.
  const auto width = static_cast<double>(size_of(w.compute));
  const double kept = width * static_cast<double>(w.secondary_elements(b).value());
  const double shard = width * static_cast<double>(w.shard_elements(b).value());
  work.up += on_node * (streamed ? kept - shard : kept);
  work.down += kept;
}

/// Adds what the first rank of a tensor group sends to it for a block's passes.
void add_group(LaneWork& work, const Workload& w, std::uint32_t b) {
  const std::uint32_t layer = w.layer_of(b);
  const auto passes = static_cast<double>(micro_batches_of_step(w));
  const bool head = layer == w.head_layer();
  const bool between = layer > 0 && !head;
  constexpr std::uint32_t kFirst = 0;
  work.tensor += passes * number(pass_sum_traffic(w, kFirst)) * (between ? 2 : 1);
  // A norm's output is gathered for each pass but the head's last, a gradient for each backward.
  if (w.shares_tokens())
    work.tensor += passes * number(token_gather_traffic(w)) * (between ? 3 : 1);
  if (head) work.tensor += passes * number(w.scan_bytes) * (w.tensor.count - 1);
  if (!w.sums_shared(b)) return;
  const ElementCount shared = w.blocks[b].parameters - w.blocks[b].partial_first;
  const Bytes bytes{shared.value() * sizeof(float)};
  work.tensor += w.rounds * number(tensor_sum_traffic(w.tensor, kFirst, bytes, DType::fp32));
}

/// Returns whether two blocks of a placement have the same work.
bool alike(const Workload& w, const Placement& p, std::uint32_t a, std::uint32_t b) {
  const auto facts = [&](std::uint32_t block) {
    const BlockShape& shape = w.blocks[block];
    const std::uint32_t layer = w.layer_of(block);
    return std::tuple(
        shape.padded_parameters,
        w.sums_shared(block) ? shape.parameters - shape.partial_first : ElementCount{},
        shape.forward_flops, shape.backward_flops, shape.saved_bytes, shape.loss_flops, block == 0,
        layer == 0, layer == w.head_layer(), w.output_waits(layer), w.first_block(layer) == block,
        is_recomputed(w, p, block));
  };
  return p.blocks[a] == p.blocks[b] && facts(a) == facts(b);
}

LaneWork work_of_step(const Workload& workload, const Placement& placement) {
  LaneWork work = work_of_blocks(workload, placement);
  // What the staging slots hold from one step to the next is not read again.
  const double spilled = number(boundary_traffic(workload, placement).spilled +
                                saved_activations_traffic(workload, placement).spilled);
  const double held =
      number(state_bytes(placement.format, placement.tile_parameters)) * placement.state_slots;
  work.read = std::max(0.0, work.read - spilled - held) + spilled;
  return work;
}

}  // namespace

LaneWork& LaneWork::operator+=(const LaneWork& other) {
  for (double LaneWork::*part : kParts) this->*part += other.*part;
  return *this;
}

LaneWork& LaneWork::operator*=(double factor) {
  for (double LaneWork::*part : kParts) this->*part *= factor;
  return *this;
}

LaneWork work_of(const Workload& w, const Placement& p, std::uint32_t b) {
  const BlockShape& shape = w.blocks[b];
  const BlockCut& cut = p.blocks[b];
  const auto passes = static_cast<double>(micro_batches_of_step(w));
  LaneWork work;
  const std::uint32_t layer = w.layer_of(b);
  if (layer != w.head_layer() &&
      (!w.operator_tiles || b > 0)) {  // the vectors of tiles are no op's own
    const int forwards = is_recomputed(w, p, b) ? 2 : 1;
    work.flops = passes * (shape.forward_flops * forwards + shape.backward_flops);
  }
  if (w.loss_blocks().contains(b)) {
    work.flops += passes * (w.loss_flops(b) * w.logit_passes() + w.loss_gradient_flops(b));
  }
  const Cut sides = evaluate_cut(block_graph(w, p, b), cut);
  work.up = number(sides.up);
  work.down = number(sides.down);
  const double later = w.rounds - 1;
  work.gpu_bytes = number(rounding_traffic(w, p, b, 0));
  if (w.rounds > 1) work.gpu_bytes += later * number(rounding_traffic(w, p, b, 1));
  if (cut.gradients != Tier::device && w.sums_gradients()) {
    work.cpu = number(summing_traffic(w, b, 0)) + later * number(summing_traffic(w, b, 1));
  }
  if (w.replicas.count > 1) add_exchange(work, w, b, !cut.resident());
  if (w.sums_passes() && w.runs(layer)) add_group(work, w, b);
  // All tiles of a block are alike, but for the last.
  const ElementCount tile = p.tile_parameters;
  const ElementCount shard = w.shard_elements(b);
  const ElementCount rest{shard.value() % tile.value()};
  add_tiles(work, w, p, {b, {}, tile}, shard / tile);
  if (rest > ElementCount{}) add_tiles(work, w, p, {b, {}, rest}, 1);
  Bytes on_disk;
  const bool starts = layer < w.head_layer() && w.first_block(layer) == b;
  if (starts && boundary_home(w, p, layer) == Tier::nvme) on_disk += in_pages(w.boundary_bytes);
  if (saved_activations_leave(w, p, b) && cut.saved == Tier::nvme)
    on_disk += in_pages(shape.saved_bytes);
  work.read += passes * number(on_disk);
  work.written += passes * number(on_disk);
  return work;
}

LaneWork work_of_blocks(const Workload& workload, const Placement& placement) {
  LaneWork sum;
  std::vector<std::pair<std::uint32_t, LaneWork>> known;  // few kinds, however many blocks
  for (std::uint32_t b = 0; b < workload.blocks.size(); ++b) {
    const auto same = std::ranges::find_if(
        known, [&](const auto& other) { return alike(workload, placement, other.first, b); });
    if (same == known.end()) {
      known.emplace_back(b, work_of(workload, placement, b));
      sum += known.back().second;
    } else {
      sum += same->second;
    }
  }
  return sum;
}

double least_seconds(const Workload& workload, const LaneWork& work,
                     const MachineProfile& profile) {
  // Every block but the head runs forward and backward, and each run is an op.
  const double ops = static_cast<double>(micro_batches_of_step(workload)) *
                     (2 * static_cast<double>(workload.blocks.size()) - 2);
  const double gpu =
      seconds_of(work.flops, profile.gpu_flops) + seconds_of(work.gpu_bytes, profile.gpu_update);
  const double cpu = seconds_of(work.cpu, profile.update);
  const double up = seconds_of(work.up, profile.h2d);
  const double down = seconds_of(work.down, profile.d2h);
  const double read = seconds_of(work.read, profile.nvme_read);
  const double written = seconds_of(work.written, profile.nvme_write);
  const CoreShares& cores = profile.cores;
  const double on_cores = gpu * cores.compute + cpu * cores.update + (up + down) * cores.copy +
                          (read + written) * cores.disk;
  const double longest =
      std::max({gpu + ops * profile.op_overhead_seconds, cpu, up, down, read, written,
                cores.compute > 0 ? on_cores : 0,
                seconds_of(work.net, profile.net) + seconds_of(work.node, node_rate(profile)) +
                    seconds_of(work.tensor, tensor_rate(profile))});
  return longest * (1 - kSumRounding);
}

double least_step_seconds(const Workload& workload, const Placement& placement,
                          const MachineProfile& profile) {
  return least_seconds(workload, work_of_step(workload, placement), profile);
}

}  // namespace spillway::plan
