// SingleCommunicator: a group of one rank, this process. Every collective is a copy or nothing.
#pragma once

#include "comm/communicator.hpp"

namespace spillway::comm {

class SingleCommunicator final : public Communicator {
 public:
  SingleCommunicator() : Communicator(Rank{0}, 1) {}

 private:
  void do_all_gather(Source shard, Target all) override;
  void do_reduce_scatter(Source all, Target shard, DType dtype) override;
  void do_broadcast(Target, Rank) override {}
  void do_all_to_all(Source source, Target target) override;
  void do_send(Source data, Rank to) override;
  void do_receive(Target data, Rank from) override;
  void do_barrier() override {}
};

}  // namespace spillway::comm
