# Each op: <op>_cpu.cc splits the work over the pool; <op>_generic.h is the one algorithm on the vector type;
# <op>_{scalar,avx2,avx512vnni}.cc compile it for one instruction set behind a table of function pointers.
include(${PROJECT_SOURCE_DIR}/src/backend/cpu/isa.cmake)
set(SPLASH_CPU_KERNELS linear/linear norm/norm swiglu/swiglu gdn/gdn attention/attention draft/block_conv
                       draft/draft_attention draft/top_k)
set(SPLASH_CPU_SOURCES embed/embed_cpu.cc)
foreach(kernel ${SPLASH_CPU_KERNELS})
  list(APPEND SPLASH_CPU_SOURCES ${kernel}_cpu.cc ${kernel}_scalar.cc ${kernel}_avx2.cc ${kernel}_avx512vnni.cc)
  splash_isa(${kernel}_scalar.cc ${SPLASH_SCALAR_FLAGS})
  splash_isa(${kernel}_avx2.cc ${SPLASH_AVX2_FLAGS})
  splash_isa(${kernel}_avx512vnni.cc ${SPLASH_AVX512VNNI_FLAGS})
endforeach()
splash_library(splash_ops_cpu SOURCES ${SPLASH_CPU_SOURCES} DEPS splash_base splash_link splash_pack splash_backend)

# Every cpu kernel of every instruction set against ref. A machine without AVX-512 skips those and says so; the program
# can be carried to one that has it (its only libraries are the C and C++ run-time).
splash_test(ops_conformance_test
            SOURCES linear/linear_test.cc norm/norm_test.cc swiglu/swiglu_test.cc embed/embed_test.cc gdn/gdn_test.cc
                    attention/attention_test.cc draft/draft_test.cc
            DEPS splash_ops_cpu splash_ops_ref)
