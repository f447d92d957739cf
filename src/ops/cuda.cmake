# Every op on the GPU, and the program that checks them against double or ref: it needs nothing but libc and the driver, so that it
# runs on a machine it was not built on.
if(NOT SPLASH_WITH_CUDA)
  return()
endif()
# Of about the same time to compile each; q4_wide is not with q4_few because both name their parts alike.
splash_cuda_unit(both attention_unit attention/attention_cuda.cu)
splash_cuda_unit(both small_unit linear/linear_cuda.cu draft/draft_cuda.cu draft/boundary_cuda.cu draft/top_k_cuda.cu sampling/law_cuda.cu embed/embed_cuda.cu
                 norm/norm_cuda.cu swiglu/swiglu_cuda.cu)
splash_cuda_unit(portable portable_unit attention/attention_portable_cuda.cu draft/top_k_portable_cuda.cu gdn/gdn_portable_cuda.cu linear/q4_portable_cuda.cu)
if(SPLASH_CUDA_PROVE_PORTABLE)
  set(hopper gdn/gdn_cuda.cu gdn/gdn_prefill_cuda.cu hopper_absent.cu)  # the first two compile for sm_80 too, and are not run
else()
  splash_cuda_unit(hopper few_unit linear/q4_few_cuda.cu gdn/gdn_cuda.cu gdn/gdn_prefill_cuda.cu)
  splash_cuda_unit(hopper wide_unit attention/attention_narrow_cuda.cu attention/attention_tiles_cuda.cu linear/q4_wide_cuda.cu)
endif()
splash_cuda_library(splash_ops_cuda SOURCES ${both} HOPPER ${hopper} PORTABLE ${portable}
                    DEPS splash_backend_cuda splash_pack splash_link)
splash_cuda_resources(splash_ops_cuda)

if(NOT SPLASH_CUDA_TESTS)
  return()
endif()
add_executable(cuda_conformance linear/linear_cuda_test.cc gdn/gdn_cuda_test.cc attention/attention_cuda_test.cc draft/draft_cuda_test.cc
               sampling/law_cuda_test.cc)
target_compile_definitions(cuda_conformance PRIVATE FMT_HEADER_ONLY)
target_link_libraries(cuda_conformance PRIVATE splash_flags splash_ops_cuda splash_ops_ref GTest::gtest GTest::gtest_main)
target_link_options(cuda_conformance PRIVATE -static-libstdc++ -static-libgcc)
# Without a GPU it says so and is skipped.
add_test(NAME cuda_conformance COMMAND cuda_conformance)
set_tests_properties(cuda_conformance PROPERTIES SKIP_RETURN_CODE 77 LABELS cuda)
