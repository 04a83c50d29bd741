// Spillway's C interface. Another program runs forward and backward; the library keeps the
// parameters, their fp32 masters and the optimizer's state in host memory or on disk, takes
// gradients as they become ready, and updates. The program may compute on the host or on a GPU.
// Plain C11, for libspillway.so; docs/c_api.md has a whole program.
//
//   spillway_create -> spillway_add_group, spillway_add_parameter -> spillway_start
//   -> each step: spillway_gradient_ready for every parameter, spillway_step -> spillway_destroy
//
// Errors. Every function that can fail returns a status, 0 (SPILLWAY_OK) or one of the codes below.
// A call that fails with SPILLWAY_INVALID_ARGUMENT, SPILLWAY_BUSY, SPILLWAY_DOES_NOT_FIT or
// SPILLWAY_NOT_SUPPORTED changes nothing, and the trainer remains usable. Where the disk or memory
// fails in the middle of an update, every later call fails likewise: make another trainer and load
// a checkpoint. spillway_last_message() then names cause, value and remedy.
//
// Threads. spillway_gradient_ready, spillway_gradient_read, spillway_wait and spillway_values may
// be called by any number of threads at the same time, and meanwhile spillway_enter, spillway_leave
// and spillway_device_values by one thread at a time. All other functions that take a trainer are
// called by one thread at a time: while one of them runs, another one returns SPILLWAY_BUSY at
// once. Calls of the first kind and of the second wait for each other. Functions without a trainer
// may be called by any thread. No function calls back.
//
// Processes. A trainer belongs to the process that made it. A child made by fork() has none of its
// threads: there, every call that takes or makes a trainer returns SPILLWAY_NOT_SUPPORTED. A
// process may exit without spillway_destroy; what was not saved is lost then.
//
// GPUs. With `device` SPILLWAY_CUDA in the options, calls that have `ready` and `handle` follow
// work of the program: nothing (SPILLWAY_READY_NOW), what a stream (cudaStream_t) holds so far, or
// what an event (cudaEvent_t) was recorded for. Handles are used for the length of the call. What a
// call brings is there when it returns; work that the program launches then has to wait for
// nothing.
//
// Memory. The library keeps no pointer of the caller's after a function has returned, but for those
// of spillway_add_parameter and of gradients in a GPU's memory, which say how long. Pointers that
// the library gives live as long as the function says. No pointer may be freed by the other side.
// Outputs may be null where the function says so.
//
// Growth. Each structure begins with its size, and is made from its SPILLWAY_..._INIT. A library of
// the same SPILLWAY_ABI_VERSION takes structures of older and newer headers: new members come at
// the end, and 0 there means what the library did before. Numbers of statuses and choices stay.
#ifndef SPILLWAY_H
#define SPILLWAY_H

#include <stdint.h>

/// Raised when programs have to be compiled again; also the number in the library's soname.
#define SPILLWAY_ABI_VERSION 1

#if defined(__GNUC__)
#define SPILLWAY_API __attribute__((visibility("default")))
#else
#define SPILLWAY_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/// Returns the SPILLWAY_ABI_VERSION that the library was built with. Compare it with the header's
/// where the library is loaded by dlopen; the linker's soname has done so elsewhere.
SPILLWAY_API uint32_t spillway_abi_version(void);
/// Returns the version of the package, such as "0.2.0". Lives as long as the library.
SPILLWAY_API const char* spillway_version(void);

/// SPILLWAY_OK or one of the codes below it.
typedef int32_t spillway_status;
enum {
  SPILLWAY_OK = 0,
  SPILLWAY_INVALID_ARGUMENT = 1,  ///< wrong usage: a bad value, handle or order of calls
  SPILLWAY_DOES_NOT_FIT = 2,      ///< a budget is too small for the request
  SPILLWAY_OUT_OF_MEMORY = 3,     ///< the system refused an allocation
  SPILLWAY_IO_ERROR = 4,          ///< a file operation failed; the native code is errno
  SPILLWAY_CORRUPT_DATA = 5,      ///< bytes read are not the bytes written
  SPILLWAY_BUSY = 6,              ///< another thread or another process has it
  SPILLWAY_NOT_SUPPORTED = 7,     ///< this build, machine or process cannot do it
  SPILLWAY_DIVERGED = 8,          ///< values are not finite and cannot be recovered
  SPILLWAY_DEVICE_ERROR = 9,      ///< a device's runtime failed; the native code is its own
  SPILLWAY_INTERNAL = 10,         ///< a library failed in a way that has no better name
};

/// Returns "io_error" for SPILLWAY_IO_ERROR and so on, "unknown" for other numbers. Lives as long
/// as the library.
SPILLWAY_API const char* spillway_status_name(spillway_status status);
/// Returns why the last call of this thread that returned a status other than SPILLWAY_OK failed:
/// cause, value, remedy, in UTF-8; "" if none has failed. The text lives until this thread's next
/// call that fails, or its end.
SPILLWAY_API const char* spillway_last_message(void);
/// Returns the native code that belongs to the last message: errno, a device's code, or 0.
SPILLWAY_API int32_t spillway_last_native_code(void);

/// Handle of a trainer, never dereferenced outside the library. A trainer that was destroyed, or
/// any other pointer, is told from a living one and refused.
typedef struct spillway_trainer spillway_trainer;

/// Element types, which parameters and gradients share.
enum { SPILLWAY_FP32 = 0, SPILLWAY_BF16 = 1, SPILLWAY_FP16 = 2 };
/// Kinds of memory, with DLPack's numbers.
enum { SPILLWAY_CPU = 1, SPILLWAY_CUDA = 2, SPILLWAY_CUDA_HOST = 3 };

/// Describes an array of the caller's: dense, in row-major order.
typedef struct spillway_tensor {
  uint32_t size;         ///< sizeof(spillway_tensor)
  int32_t dtype;         ///< SPILLWAY_FP32, SPILLWAY_BF16 or SPILLWAY_FP16
  int32_t device;        ///< SPILLWAY_CPU or SPILLWAY_CUDA_HOST: memory that the host reads;
                         ///< SPILLWAY_CUDA where the function says so
  int32_t device_index;  ///< which of the devices; 0 for host memory
  void* data;            ///< the first element; aligned to the element type
  const int64_t* shape;  ///< [dimensions], each at least 1; may be null where there are none
  int32_t dimensions;    ///< 0 for a single number, at most 64
  int32_t reserved;      ///< 0
} spillway_tensor;
#define SPILLWAY_TENSOR_INIT \
  { sizeof(spillway_tensor), SPILLWAY_FP32, SPILLWAY_CPU, 0, 0, 0, 0, 0 }

/// Describes the array of a DLTensor (DLPack, 0.2 to 1.x): `dl_tensor` is the address of the member
/// of that name of a DLManagedTensor or DLManagedTensorVersioned. It is a void* because DLPack's
/// structure has no tag that a header could name. Ownership stays where it is, and `tensor` points
/// into the DLTensor's memory. Refuses strides that are not dense, and types other than the three.
SPILLWAY_API spillway_status spillway_tensor_from_dlpack(const void* dl_tensor,
                                                         spillway_tensor* tensor);
/// Writes the opposite into the DLTensor at `dl_tensor`, which the caller wraps as its framework
/// wants. Data and shape are those of `tensor`, and keep their owner. `strides`: [dimensions] of
/// the caller's, which are filled and pointed to; null: the DLTensor has none (before DLPack 1.2).
SPILLWAY_API spillway_status spillway_tensor_to_dlpack(const spillway_tensor* tensor,
                                                       int64_t* strides, void* dl_tensor);

/// Optimizers: Adam(W), Adagrad, Lion and SGD with momentum.
enum { SPILLWAY_ADAM = 0, SPILLWAY_ADAGRAD = 1, SPILLWAY_LION = 2, SPILLWAY_SGD = 3 };
/// How weight decay acts: on the parameter (AdamW), or through the gradient (Adam with L2).
enum { SPILLWAY_DECAY_DECOUPLED = 0, SPILLWAY_DECAY_L2 = 1 };

/// Hyperparameters of a group of parameters for the next step.
typedef struct spillway_group {
  uint32_t size;      ///< sizeof(spillway_group)
  int32_t optimizer;  ///< SPILLWAY_ADAM...; groups may have different ones
  double lr;          ///< finite, at least 0, as eps and weight_decay
  double beta1;       ///< in [0, 1); SGD: the momentum
  double beta2;       ///< in [0, 1)
  double eps;
  double weight_decay;
  int32_t decay_mode;       ///< SPILLWAY_DECAY_DECOUPLED...
  int32_t bias_correction;  ///< 0 or 1; of Adam
} spillway_group;
#define SPILLWAY_GROUP_INIT                                                                       \
  {                                                                                               \
    sizeof(spillway_group), SPILLWAY_ADAM, 1e-3, 0.9, 0.999, 1e-8, 0.0, SPILLWAY_DECAY_DECOUPLED, \
        1                                                                                         \
  }

/// What is kept of a parameter between steps. SPILLWAY_STATE_FP32: 12 bytes. The others, for bf16
/// parameters, keep the master as parameter and 16-bit remainder, and the moments in fp32 (10
/// bytes), bf16 (6) or 8-bit codes (4.03).
enum {
  SPILLWAY_STATE_FP32 = 0,
  SPILLWAY_STATE_SPLIT = 1,
  SPILLWAY_STATE_BF16 = 2,
  SPILLWAY_STATE_INT8 = 3
};
/// Instruction sets of the update. None changes a bit of the result.
enum {
  SPILLWAY_ISA_BEST = 0,
  SPILLWAY_ISA_SCALAR = 1,
  SPILLWAY_ISA_PORTABLE = 2,
  SPILLWAY_ISA_AVX2 = 3,
  SPILLWAY_ISA_AVX512 = 4
};

/// How to train. SPILLWAY_OPTIONS_INIT has the defaults.
typedef struct spillway_options {
  uint32_t size;         ///< sizeof(spillway_options)
  int32_t state_format;  ///< SPILLWAY_STATE_FP32...
  /// Gradients of each parameter in a step. Several are summed in fp32, in the order in which they
  /// come; 0: any number.
  uint32_t gradients_per_step;
  int32_t defers_updates;     ///< 1: spillway_step decides, and the update runs until spillway_wait
  int32_t zeros_for_missing;  ///< 1: a parameter without a gradient has one of zeros; 0: refused
  int32_t isa;                ///< SPILLWAY_ISA_BEST...
  uint32_t threads;           ///< of the update; 0: one for each physical core
  uint32_t nvme_count;        ///< length of `nvme`; 0: state is in host memory
  /// [nvme_count] directories, which have to be there; the state is striped over them. Read by
  /// spillway_start only.
  const char* const* nvme;
  uint64_t host_memory;      ///< bytes; 0: what cgroup and system leave
  uint64_t tile_parameters;  ///< unit of update and I/O, a multiple of 4096; 0: 2 Mi
  uint64_t seed;             ///< of the stochastic rounding of SPILLWAY_STATE_BF16
  int32_t traces;            ///< 1: records the first operations, for spillway_write_trace
  int32_t reserved;          ///< 0
  // Since 1.1.
  int32_t device;            ///< where the program computes: 0 or SPILLWAY_CPU, or SPILLWAY_CUDA
  int32_t device_index;      ///< of the GPU, as CUDA numbers them
  uint64_t device_memory;    ///< bytes through which units of parameters are streamed; 0: none are
  uint64_t gradient_memory;  ///< bytes of gradients that may wait in a GPU's memory; 0: any
} spillway_options;
#define SPILLWAY_OPTIONS_INIT                                                                 \
  {                                                                                           \
    sizeof(spillway_options), SPILLWAY_STATE_FP32, 1, 0, 0, SPILLWAY_ISA_BEST, 0, 0, 0, 0, 0, \
        1234, 0, 0, 0, 0, 0, 0                                                                \
  }

/// Makes a trainer without parameters. `trainer` is null where this fails.
SPILLWAY_API spillway_status spillway_create(spillway_trainer** trainer);

/// Adds a group before the start; the first is 0. `index`: its number; may be null.
SPILLWAY_API spillway_status spillway_add_group(spillway_trainer* trainer,
                                                const spillway_group* group, uint32_t* index);

/// Adds a parameter before the start; the first is 0. `name`: unique, for messages and checkpoints;
/// copied. `group`: a number from spillway_add_group. `values`: the start values in host memory;
/// all parameters have one dtype. `values->data` must live until spillway_start has returned 0,
/// which reads it once. `index`: the parameter's number; may be null.
SPILLWAY_API spillway_status spillway_add_parameter(spillway_trainer* trainer, const char* name,
                                                    uint32_t group, const spillway_tensor* values,
                                                    uint32_t* index);

/// Puts a parameter, before the start, into `unit`: a part of the model that is streamed as a
/// whole, counted from 0 in the order of forward. Parameters of a unit are of at most two groups;
/// those of no unit stay on the device.
SPILLWAY_API spillway_status spillway_set_unit(spillway_trainer* trainer, uint32_t parameter,
                                               uint32_t unit);

/// Takes memory, opens files and starts threads. `options` may be null: the defaults. Afterwards no
/// group or parameter can be added. Where it fails it may be called again, with other options.
SPILLWAY_API spillway_status spillway_start(spillway_trainer* trainer,
                                            const spillway_options* options);

/// Gives the place of a parameter's values from the start to spillway_destroy: in host memory, or
/// in that of the GPU where the options say SPILLWAY_CUDA and it is of no unit. The calls that
/// release and resume a device move those of no unit. The program may compute with them there, or
/// copy from there after each step. `values`: its shape lives as long. They may be read between
/// spillway_wait (or spillway_step without `defers_updates`) and the next spillway_step.
SPILLWAY_API spillway_status spillway_values(spillway_trainer* trainer, uint32_t parameter,
                                             spillway_tensor* values);
/// Reports that the program has written the values of a parameter itself, after a
/// spillway_synchronize: the master follows, the moments and gradients stay. Fails where
/// nobody has waited for a deferred update, beside which the values may have been written. For
/// values in host memory that are of no unit, the next step finds out by itself.
SPILLWAY_API spillway_status spillway_values_changed(spillway_trainer* trainer, uint32_t parameter);

/// What is waited for: nothing, what is in a stream so far, or an event.
enum { SPILLWAY_READY_NOW = 0, SPILLWAY_READY_STREAM = 1, SPILLWAY_READY_EVENT = 2 };

/// Acts as spillway_values_changed once the work that `ready` and `handle` name is over. Blocks for
/// it. A null stream is CUDA's default stream.
SPILLWAY_API spillway_status spillway_values_written(spillway_trainer* trainer, uint32_t parameter,
                                                     int32_t ready, void* handle);

/// Hands over a gradient of this step, in the shape and dtype of the parameter. In host memory
/// (SPILLWAY_READY_NOW, a null `handle`) it may be overwritten on return: the call blocks for the
/// copy and, with `defers_updates`, while the last update still reads the gradient before. In the
/// memory of the trainer's GPU (SPILLWAY_CUDA) it is read later, after what `ready` and `handle`
/// name, and spillway_gradient_read says when that is over. The call then blocks only while an
/// earlier gradient of the parameter is on its way, and for `gradient_memory`. Refuses more than
/// `gradients_per_step`. Any thread.
SPILLWAY_API spillway_status spillway_gradient_ready(spillway_trainer* trainer, uint32_t parameter,
                                                     const spillway_tensor* gradient, int32_t ready,
                                                     void* handle);
/// Sets `read` to 1 if the memory of the gradients that were handed over for a parameter has been
/// read and may be used again, else to 0. It is 1 after spillway_step, spillway_grad_norm and
/// spillway_discard_gradients. Does not block. Any thread.
SPILLWAY_API spillway_status spillway_gradient_read(spillway_trainer* trainer, uint32_t parameter,
                                                    int32_t* read);
/// Forgets the gradients of this step.
SPILLWAY_API spillway_status spillway_discard_gradients(spillway_trainer* trainer);
/// Gives the L2 norm of this step's gradients, divided by `divisor`. spillway_step or
/// spillway_discard_gradients is next.
SPILLWAY_API spillway_status spillway_grad_norm(spillway_trainer* trainer, double divisor,
                                                double* norm);

/// How to use the gradients of a step.
typedef struct spillway_step_options {
  uint32_t size;            ///< sizeof(spillway_step_options)
  uint32_t reserved;        ///< 0
  double gradient_divisor;  ///< above 0: the loss scale, times micro-batches that were only summed
  double max_norm;          ///< clips the global norm to this; 0: no clipping
  // Since 1.1: work that may still read parameters in a GPU's memory.
  int32_t ready;      ///< SPILLWAY_READY_NOW: none does
  int32_t reserved2;  ///< 0
  void* handle;
} spillway_step_options;
#define SPILLWAY_STEP_OPTIONS_INIT \
  { sizeof(spillway_step_options), 0, 1.0, 0.0, SPILLWAY_READY_NOW, 0, 0 }

/// What a step did.
typedef struct spillway_step_result {
  uint32_t size;     ///< sizeof(spillway_step_result)
  int32_t skipped;   ///< 1: a gradient was not finite, and no parameter or state has changed
  uint64_t step;     ///< from 1, skipped ones included
  double grad_norm;  ///< after the divisor, before clipping
} spillway_step_result;
#define SPILLWAY_STEP_RESULT_INIT \
  { sizeof(spillway_step_result), 0, 0, 0.0 }

/// Ends the step: norm, clipping, update. Blocks until the values are updated or, with
/// `defers_updates`, until the update is decided. Fails where a gradient is missing, which may then
/// be handed over before the next call. `options` may be null (the defaults), `result` too.
SPILLWAY_API spillway_status spillway_step(spillway_trainer* trainer,
                                           const spillway_step_options* options,
                                           spillway_step_result* result);
/// Blocks until a parameter has every update that spillway_step has decided. Any thread. For a
/// parameter of a unit it ends passes: it fails if a unit is entered in the forward pass beside
/// that update, and may be called again once the unit was left.
SPILLWAY_API spillway_status spillway_wait(spillway_trainer* trainer, uint32_t parameter);
/// Blocks likewise for all parameters.
SPILLWAY_API spillway_status spillway_synchronize(spillway_trainer* trainer);

/// Passes of a unit.
enum { SPILLWAY_FORWARD = 0, SPILLWAY_BACKWARD = 1 };
/// Begins a pass of a unit, where the options have `device_memory`: blocks until its parameters are
/// on the device. Units in order, forward or in reverse, are uploaded ahead; any other order waits.
SPILLWAY_API spillway_status spillway_enter(spillway_trainer* trainer, uint32_t unit, int32_t pass);
/// Gives the place of a parameter of the entered unit on the device, until spillway_leave.
SPILLWAY_API spillway_status spillway_device_values(spillway_trainer* trainer, uint32_t parameter,
                                                    spillway_tensor* values);
/// Ends the pass: the memory of its parameters is another unit's once the work that `ready` and
/// `handle` name is over. Does not wait for it. A pass that has failed is left too: until then
/// steps, calls that forget gradients, and those of state, values and checkpoints fail.
SPILLWAY_API spillway_status spillway_leave(spillway_trainer* trainer, uint32_t unit, int32_t ready,
                                            void* handle);
/// Frees all memory of the device between steps, once the work that `ready` and `handle` name is
/// over. Until spillway_resume_device, parameters are in host memory, where spillway_values says
/// and the program may write them, and state may be read, written and saved. Passes, gradients,
/// steps and spillway_load fail. It fails itself while a unit is entered or the step has gradients.
SPILLWAY_API spillway_status spillway_release_device(spillway_trainer* trainer, int32_t ready,
                                                     void* handle);
/// Takes the memory again, with what the values are by now, whose places are new ones. Returns
/// SPILLWAY_OUT_OF_MEMORY, and has taken nothing, where the device has no room.
SPILLWAY_API spillway_status spillway_resume_device(spillway_trainer* trainer);

/// Gives and sets the hyperparameters of a group, for the next step on. The optimizer stays.
SPILLWAY_API spillway_status spillway_get_group(spillway_trainer* trainer, uint32_t group,
                                                spillway_group* values);
SPILLWAY_API spillway_status spillway_set_group(spillway_trainer* trainer, uint32_t group,
                                                const spillway_group* values);
/// Gives the number of steps, and of those that updated, which is Adam's t. Either may be null.
SPILLWAY_API spillway_status spillway_get_steps(spillway_trainer* trainer, uint64_t* steps,
                                                uint64_t* updates);
/// Sets the t of Adam's bias correction, where state comes from another optimizer.
SPILLWAY_API spillway_status spillway_set_updates(spillway_trainer* trainer, uint64_t updates);

/// Gives and sets the master weights and the two moments of a parameter in fp32: [elements] each,
/// in the parameter's order. `elements` is the parameter's. Reading leaves out a null array;
/// writing needs the master, takes a null moment for zeros, and comes between a spillway_step and
/// the next gradient. Blocks for the disk. The values follow what is written.
SPILLWAY_API spillway_status spillway_read_state(spillway_trainer* trainer, uint32_t parameter,
                                                 uint64_t elements, float* master, float* m,
                                                 float* v);
SPILLWAY_API spillway_status spillway_write_state(spillway_trainer* trainer, uint32_t parameter,
                                                  uint64_t elements, const float* master,
                                                  const float* m, const float* v);
/// Writes a checkpoint of parameters, state and counts into `directory`, which does not exist yet.
/// Gradients of a step under way are not in it, and stay. It is whole and durable once this returns
/// 0, and no checkpoint before that. Streams: it needs no second copy in memory.
SPILLWAY_API spillway_status spillway_save(spillway_trainer* trainer, const char* directory);
/// Takes the state of a checkpoint into a started trainer with the same parameters, groups, units,
/// `state_format` and `tile_parameters`; where the state lives may differ. Returns
/// SPILLWAY_CORRUPT_DATA for a damaged one, which has changed nothing. Where the disk fails in the
/// middle of spillway_load, spillway_write_state or spillway_values_changed, steps return
/// SPILLWAY_CORRUPT_DATA until a load succeeds, or that call does.
SPILLWAY_API spillway_status spillway_load(spillway_trainer* trainer, const char* directory);

/// One line of a table of memory: every byte that the trainer has taken.
typedef struct spillway_memory_row {
  uint32_t size;  ///< sizeof(spillway_memory_row)
  uint32_t reserved;
  const char* tier;  ///< "device", "host" or "nvme"; null behind the last row
  const char* what;  ///< such as "optimizer state"
  uint64_t bytes;
} spillway_memory_row;
#define SPILLWAY_MEMORY_ROW_INIT \
  { sizeof(spillway_memory_row), 0, 0, 0, 0 }
/// Gives row `row` of the table, from 0. Behind the last row it succeeds with a null `tier`.
/// Strings live as long as the trainer.
SPILLWAY_API spillway_status spillway_get_memory(spillway_trainer* trainer, uint32_t row,
                                                 spillway_memory_row* values);

/// Work of one lane so far: the processor, a direction of the disk, ...
typedef struct spillway_lane_row {
  uint32_t size;  ///< sizeof(spillway_lane_row)
  uint32_t reserved;
  const char* lane;  ///< such as "cpu" or "nvme_read"; null behind the last row
  uint64_t bytes;    ///< that a disk or a link has moved for this lane since the start; else 0
  double seconds;    ///< that this lane worked in the last step
} spillway_lane_row;
#define SPILLWAY_LANE_ROW_INIT \
  { sizeof(spillway_lane_row), 0, 0, 0, 0.0 }
/// Gives row `row` of the lanes, from 0, likewise. Strings live as long as the library.
SPILLWAY_API spillway_status spillway_get_lane(spillway_trainer* trainer, uint32_t row,
                                               spillway_lane_row* values);

/// Writes when each operation of the first steps ran, into a file `path` as JSON for
/// chrome://tracing and ui.perfetto.dev. Needs `traces`.
SPILLWAY_API spillway_status spillway_write_trace(spillway_trainer* trainer, const char* path);

/// Applies what is decided and frees everything; the handle is refused from then on. Returns
/// SPILLWAY_BUSY, and destroys nothing, while another thread uses the trainer. Null is fine.
SPILLWAY_API spillway_status spillway_destroy(spillway_trainer* trainer);

#ifdef __cplusplus
}
#endif
#endif  // SPILLWAY_H
