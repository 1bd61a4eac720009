package util // not looked at
