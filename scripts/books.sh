#!/usr/bin/env bash
# books.sh FOLDER | TEXT... HELDOUT: joins texts into books.txt, which the studies on text train on, and writes the first
# 32 KiB of the last text to heldout.txt and all of it, in pieces of whole lines and at most 9,000 bytes, to heldout/. Of a
# folder these are its *.txt files by name. Nothing is downloaded and nothing is replaced.
set -euo pipefail

refuse() {
  echo "books.sh: $1" >&2
  exit 2
}

if [[ $# -eq 1 && -d $1 ]]; then
  texts=("$1"/*.txt)
  [[ -e ${texts[0]} ]] || refuse "$1: expected .txt files in this folder"
else
  texts=("$@")
fi
(( ${#texts[@]} >= 2 )) || refuse "expected a folder, or at least two texts, of which the last is held out; got ${#texts[@]}"
for text in "${texts[@]}"; do
  [[ -f $text && -r $text && -s $text ]] || refuse "$text: expected a text file that is not empty"
done
for made in books.txt heldout.txt heldout; do
  [[ ! -e $made ]] || refuse "$made exists; remove it first"
done

heldout=${texts[-1]}
unset 'texts[-1]'
trap 'rm -rf books.txt.unfinished heldout.txt.unfinished heldout.unfinished' EXIT
cat -- "${texts[@]}" >books.txt.unfinished
head -c 32768 -- "$heldout" >heldout.txt.unfinished
rm -rf heldout.unfinished
mkdir heldout.unfinished
split --line-bytes=9000 --numeric-suffixes --suffix-length=4 --additional-suffix=.txt -- "$heldout" heldout.unfinished/
pieces=(heldout.unfinished/*)
mv books.txt.unfinished books.txt
mv heldout.txt.unfinished heldout.txt
mv heldout.unfinished heldout
echo "books.sh: books.txt, $(wc -c <books.txt) bytes of ${#texts[@]} texts; of $heldout heldout.txt, $(wc -c <heldout.txt) bytes, and heldout/, ${#pieces[@]} pieces"
