// A fake asynchronous accelerator (TVM's ext_dev) for tests on a machine without one.
//
// Launching a kernel returns at once. Its work is done at once too, but the device counts as busy
// for as long as the kernel is said to take, one kernel after the other; synchronising sleeps until
// it is idle. So nothing here runs in parallel, and every wait is at least as long as it should be.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/device_api.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;
namespace ffi = tvm::ffi;
namespace runtime = tvm::runtime;

Clock::time_point idle_from;  // when the last kernel launched will have finished
int64_t synchronizations = 0;
bool lost = false;

class FakeDevice final : public runtime::DeviceAPI {
 public:
  void SetDevice(tvm::Device) final {}

  void GetAttr(tvm::Device, runtime::DeviceAttrKind kind, ffi::Any* result) final {
    if (kind == runtime::kExist) *result = 1;
  }

  void* AllocDataSpace(tvm::Device, size_t size, size_t alignment, DLDataType) final {
    return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  }

  void FreeDataSpace(tvm::Device, void* data) final { std::free(data); }

  void StreamSync(tvm::Device, TVMStreamHandle) final {
    ++synchronizations;
    if (lost) TVM_FFI_THROW(RuntimeError) << "the fake device is lost";
    std::this_thread::sleep_until(idle_from);
  }

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset, size_t size,
                      tvm::Device, tvm::Device, DLDataType, TVMStreamHandle) final {
    std::memcpy(static_cast<char*>(to) + to_offset, static_cast<const char*>(from) + from_offset,
                size);
  }
};

// The kernel: out = x + 1, in so many microseconds of the device's time.
void AddOne(ffi::Tensor x, int64_t microseconds, ffi::Tensor out) {
  const float* from = static_cast<const float*>(x.data_ptr());
  std::transform(from, from + x.numel(), static_cast<float*>(out.data_ptr()),
                 [](float value) { return value + 1; });
  idle_from = std::max(idle_from, Clock::now()) + std::chrono::microseconds(microseconds);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  static FakeDevice device;
  ffi::reflection::GlobalDef()
      .def_packed("device_api.ext_dev",
                  [](ffi::PackedArgs, ffi::Any* result) {
                    *result = static_cast<void*>(static_cast<runtime::DeviceAPI*>(&device));
                  })
      .def("fake_device.add_one", AddOne)
      .def("fake_device.synchronizations", [] { return synchronizations; })
      .def("fake_device.lose", [](bool now) { lost = now; });
}

}  // namespace
