// The devices an op is overloaded for. Bit contract of every op on every stream: the result of a row depends only on that
// row's own lane (its inputs, positions and state), never on other rows, lanes, chunk cuts or the number of threads.
#pragma once

#include "backend/cpu/stream.h"
#include "backend/ref/stream.h"
