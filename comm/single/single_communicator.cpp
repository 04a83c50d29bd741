#include "comm/single/single_communicator.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"

namespace spillway::comm {
namespace {

void copy(Communicator::Source source, Communicator::Target target) {
  if (source.data() != target.data()) std::ranges::copy(source, target.begin());
}

}  // namespace

void SingleCommunicator::do_all_gather(Source shard, Target all) { copy(shard, all); }

void SingleCommunicator::do_reduce_scatter(Source all, Target shard, DType) { copy(all, shard); }

void SingleCommunicator::do_all_to_all(Source source, Target target) { copy(source, target); }

// Never reached: the argument checks know that a group of one has no peer.
void SingleCommunicator::do_send(Source, Rank) { SPILLWAY_ASSERT(ranks() > 1); }

void SingleCommunicator::do_receive(Target, Rank) { SPILLWAY_ASSERT(ranks() > 1); }

}  // namespace spillway::comm
