package util // want package-name
