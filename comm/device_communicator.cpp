#include "comm/device_communicator.hpp"

#include <span>
#include <utility>

#include "comm/detail/device_operations.hpp"

namespace spillway::comm {
namespace {

std::span<const std::byte> bytes_of(DeviceSource source) { return {source.address, source.size}; }
std::span<std::byte> bytes_of(DeviceTarget target) { return {target.address, target.size}; }

}  // namespace

DeviceCommunicator::DeviceCommunicator(Communicator& host, const DeviceCommunicatorOptions& options)
    : operations_(std::make_shared<detail::DeviceOperations>(host, options)),
      group_(operations_->all()) {}

DeviceCommunicator::DeviceCommunicator(std::shared_ptr<detail::DeviceOperations> operations,
                                       detail::DeviceGroup& group)
    : operations_(std::move(operations)), group_(group) {}

DeviceCommunicator::~DeviceCommunicator() = default;

std::unique_ptr<DeviceCommunicator> DeviceCommunicator::subgroup(std::span<const Rank> members) {
  detail::DeviceGroup& group = operations_->add_subgroup(group_, members);
  return std::unique_ptr<DeviceCommunicator>(new DeviceCommunicator(operations_, group));
}

void DeviceCommunicator::all_gather(DeviceSource shard, DeviceTarget all, Stream stream) {
  operations_->start(
      group_,
      {.operation = Operation::all_gather, .source = bytes_of(shard), .target = bytes_of(all)},
      stream);
}

void DeviceCommunicator::reduce_scatter(DeviceSource all, DeviceTarget shard, DType dtype,
                                        Stream stream) {
  operations_->start(group_,
                     {.operation = Operation::reduce_scatter,
                      .source = bytes_of(all),
                      .target = bytes_of(shard),
                      .types = {dtype, dtype}},
                     stream);
}

void DeviceCommunicator::all_reduce(DeviceTarget data, DType dtype, Stream stream) {
  operations_->start(group_,
                     {.operation = Operation::all_reduce,
                      .source = bytes_of(data),
                      .target = bytes_of(data),
                      .types = {dtype, dtype}},
                     stream);
}

void DeviceCommunicator::broadcast(DeviceTarget data, Rank root, Stream stream) {
  operations_->start(
      group_, {.operation = Operation::broadcast, .target = bytes_of(data), .root = root}, stream);
}

void DeviceCommunicator::reduce(DeviceTarget data, DType dtype, Rank root, Stream stream) {
  operations_->start(group_,
                     {.operation = Operation::reduce,
                      .source = bytes_of(data),
                      .target = bytes_of(data),
                      .types = {dtype, dtype},
                      .root = root},
                     stream);
}

void DeviceCommunicator::gather(DeviceSource shard, DeviceTarget all, Rank root, Stream stream) {
  operations_->start(group_,
                     {.operation = Operation::gather,
                      .source = bytes_of(shard),
                      .target = bytes_of(all),
                      .root = root},
                     stream);
}

void DeviceCommunicator::scatter(DeviceSource all, DeviceTarget shard, Rank root, Stream stream) {
  operations_->start(group_,
                     {.operation = Operation::scatter,
                      .source = bytes_of(all),
                      .target = bytes_of(shard),
                      .root = root},
                     stream);
}

void DeviceCommunicator::all_to_all(DeviceSource source, DeviceTarget target, Stream stream) {
  operations_->start(
      group_,
      {.operation = Operation::all_to_all, .source = bytes_of(source), .target = bytes_of(target)},
      stream);
}

void DeviceCommunicator::send(DeviceSource data, Rank to, Stream stream) {
  operations_->start(group_, {.operation = Operation::send, .source = bytes_of(data), .root = to},
                     stream);
}

void DeviceCommunicator::receive(DeviceTarget data, Rank from, Stream stream) {
  operations_->start(
      group_, {.operation = Operation::receive, .target = bytes_of(data), .from = from}, stream);
}

void DeviceCommunicator::exchange(DeviceSource source, Rank to, DeviceTarget target, Rank from,
                                  Stream stream) {
  operations_->start(group_,
                     {.operation = Operation::exchange,
                      .source = bytes_of(source),
                      .target = bytes_of(target),
                      .root = to,
                      .from = from},
                     stream);
}

void DeviceCommunicator::barrier(Stream stream) {
  operations_->start(group_, {.operation = Operation::barrier}, stream);
}

bool DeviceCommunicator::watch() { return operations_->watch(); }

void DeviceCommunicator::wait() { operations_->wait(); }

Bytes DeviceCommunicator::sent(Operation operation) const { return group_.sent.of(operation); }

Bytes DeviceCommunicator::sent() const { return group_.sent.total(); }

}  // namespace spillway::comm
