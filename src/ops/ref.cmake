# The scalar truth of every op, and the sampling rules shared by all host streams.
splash_library(splash_ops_ref
               SOURCES attention/attention_ref.cc draft/draft_ref.cc embed/embed_ref.cc gdn/gdn_ref.cc
                       linear/linear_ref.cc norm/norm_ref.cc sampling/sampling.cc swiglu/swiglu_ref.cc
               DEPS splash_base splash_link splash_backend)

splash_test(sampling_test SOURCES sampling/sampling_test.cc DEPS splash_ops_ref)
