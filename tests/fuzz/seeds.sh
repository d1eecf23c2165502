#!/usr/bin/env bash
# seeds.sh FOLDER: makes the inputs from which the fuzz targets `pictures`, `recordings` and `tables` start, in
# FOLDER/pictures and so on: small ones, each of another form.
set -euo pipefail
mkdir -p "$1"/{pictures,recordings,tables}
cd "$1"
decoded() { base64 -d >"$1"; }

# Two by two pixels.
decoded pictures/rgb.png <<<iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFklEQVR42mNgYGRiZmFlPHHy1OkzZwERLATQkVMhdgAAAABJRU5ErkJggg==
decoded pictures/grey16.png <<<iVBORw0KGgoAAAANSUhEUgAAAAIAAAACEAQAAACILxnsAAAAGklEQVR42mNiYGRiZmFlY2dJSU1Lz8jMygYAEA4DX5uxbaoAAAAASUVORK5CYII=
decoded pictures/palette.png <<<iVBORw0KGgoAAAANSUhEUgAAAAMAAAACAgMAAADgGo6JAAAADFBMVEUAAQIDBAUGBwgJCgvcTDicAAAAAnRSTlMAgJsrThgAAAAMSURBVHjaY5Bm0AEAAIEASJuknb4AAAAASUVORK5CYII=
decoded pictures/interlaced.png <<<iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAAAAAEg2mJuAAAAD0lEQVR42mNgZGBiZmEFAAArABAbR4msAAAAAElFTkSuQmCC
decoded pictures/exif.png <<<iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAGmVYSWZJSSoACAAAAAEAEgEDAAEAAAAGAAAAAAAAALdIESkAAAALSURBVHjaY2BABgAADgABOjUEVgAAAABJRU5ErkJggg==
decoded pictures/base.jpg <<</9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAKBueIx4ZKCMgoy0qqC+8P//8Nzc8P//////////////////////////////////////////////////////////wAALCAACAAIBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAv/EABYQAAMAAAAAAAAAAAAAAAAAAAABMf/aAAgBAQAAPwAun//Z
decoded pictures/progressive.jpg <<</9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAKBueIx4ZKCMgoy0qqC+8P//8Nzc8P//////////////////////////////////////////////////////////wgALCAACAAIBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAf/aAAgBAQAAAAE//8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQABBQJ//8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQAGPwJ//8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQABPyF//9oACAEBAAAAEH//xAAWEAADAAAAAAAAAAAAAAAAAAAAATH/2gAIAQEAAT8QdP/Z
decoded pictures/colour.jpg <<</9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAKBueIx4ZKCMgoy0qqC+8P//8Nzc8P//////////////////////////////////////////////////////////2wBDAaq0tPDS8P//////////////////////////////////////////////////////////////////////////////wAARCAACAAIDASIAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAAAAL/xAAWEAEBAQAAAAAAAAAAAAAAAAAAATH/xAAVAQEBAAAAAAAAAAAAAAAAAAACA//EABQRAQAAAAAAAAAAAAAAAAAAAAD/2gAMAwEAAhEDEQA/AJugCo//2Q==
decoded pictures/exif.jpg <<</9j/4AAQSkZJRgABAQAAAQABAAD/4QAiRXhpZgAATU0AKgAAAAgAAQESAAMAAAABAAYAAAAAAAD/2wBDAKBueIx4ZKCMgoy0qqC+8P//8Nzc8P//////////////////////////////////////////////////////////wAALCAACAAIBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAv/EABYQAAMAAAAAAAAAAAAAAAAAAAABMf/aAAgBAQAAPwAun//Z

# A list and, after a zero byte, a recording: 240 samples of 16 bits as WAV, 400 as FLAC.
list() { printf '%b\0' "$1"; }
wav() {  # the number of channels, and of bytes that the header says
  printf '%b' 'RIFF\x04\x02\0\0WAVEfmt \x10\0\0\0\x01\0\x0'"$1"'\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data'"$2"
  printf 'abcdefghijklmnopqrstuvwxyz0123%.0s' {1..16}
}
flac() { base64 -d <<<ZkxhQwAAACIQABAAAACqAACqAfQA8AAAAZChu3pUGnpPPE98Cq4kDJK7hAAAKCAAAAByZWZlcmVuY2UgbGliRkxBQyAxLjQuMiAyMDIyMTAyMgAAAAD/+HQIAAGPJEQAAAEnAjS0rM1NjjgCqS1LKUWlC5LLJlqUllFZWlojFossTC0sTKqWWUqLFxalalFJQtWJkxclRaWEypYrE0qItJUTEycI0lYTUiZZapaiylImXFytSiyVFllSqikpRMEYmXLE1FoqlFYtRVKLJYsVK1qYrExSUWpZaTSLSVQtSomWpRYtYWsuJi1SkosVlkxMtKSLJgjJMTLKpYmisIDVDA==; }
{ list '0a.wav\ta\n'; wav 1 '\xe0\x01\0\0'; } >recordings/tsv
{ list '0a.wav\tb c\r\nmissing.wav\td\n'; wav 2 '\xe0\x01\0\0'; } >recordings/stereo
{ list '0a.wav\ta\n'; wav 1 '\xff\xff\xff\xff'; } >recordings/pipe
{ list '1{"audio": "a.wav", "text": "\\u00e9"}\n'; flac; } >recordings/jsonl
{ list '2a EH\nb B IY\n'; flac; } >recordings/lexicon

printf '0Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n( ( ( [SM 4 ) 7 ) ] )\t1\n' >tables/listops
printf '1"1.0"\tP1\tP2\tone text\tanother\n0\tP1\tP3\tone text\tthird\n' >tables/quoted
printf '11.0\ta\tb\r\n0\tc\td\r\n' >tables/pairs
printf '2good, \303\251\n' >tables/text
