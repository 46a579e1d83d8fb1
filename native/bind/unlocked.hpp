// The GIL, let go of for a while, in a way that survives the end of the interpreter.
#pragma once

#include <nanobind/nanobind.h>

namespace stepwell::bind {

// Lives while the calling thread works without the GIL.
//
// A daemon thread may still be at work when the interpreter ends. Taking the GIL back then
// would make Python end the thread by unwinding it, through frames of C++ that must not be
// unwound: an abort. So from the interpreter's atexit on, such a thread stops here for good
// instead, and the atexit hook waits for those that are already asking for the GIL.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked();
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace stepwell::bind
