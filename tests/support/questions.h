// What the tests of the built-in model ask it, on every device.
#pragma once

#include <iterator>
#include <string>

namespace splash::test {

// Questions of the kinds the model was trained for and of kinds it was not; no two are equal.
inline std::string question(int index) {
  static const char* const forms[] = {
      "What is {} plus {}?",
      "Write a short poem about number {} and number {}.",
      "My name is Tester{} and I am {} years old. What is my name?",
      "Sort these numbers: {}, 17, {}, 3.",
      "Hello! This is message {} of {}. How are you?",
      "Explain what a local inference engine does, in {} words or {} lines.",
      "Return a JSON object with keys id={} and size={}.",
      "def f{}(x):\n    return x * {}\n\nWhat does this function do?",
      "Reverse the word 'splash{}x{}'.",
      "Le café numéro {} coûte {} euros. 你好! 😀",
  };
  std::string text = forms[index % std::size(forms)];
  for (int value : {index, 1000 - index}) text.replace(text.find("{}"), 2, std::to_string(value));
  return text;
}

}  // namespace splash::test
